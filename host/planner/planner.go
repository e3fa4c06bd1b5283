// Package planner holds the planners that an agent can name, one file each. They are pure: they see a frame and propose.
package planner

import "github.com/pawlhost/pawl/host"

// All returns the planners by kind.
func All() map[string]host.Planner {
	return map[string]host.Planner{"script": script{}, "external": external{}}
}
