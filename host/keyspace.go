package host

import (
	"time"

	"github.com/pawlhost/pawl/store"
)

// The keyspace, in one place. Everything of a tenant lies below ("t", tenant); everything of a run lies below its head,
// so that a run is one deletable range:
//
//	t/TENANT/run/RUN                          head
//	t/TENANT/run/RUN/call/FRAME/TURN/INDEX    calls
//	t/TENANT/run/RUN/apr/ID  …/pause/ID       approvals, pauses
//	t/TENANT/run/RUN/frame/ID                 live subagent calls
//	t/TENANT/run/RUN/msg/SEQ                  messages that are no calls
//	t/TENANT/run/RUN/ctx  …/state  …/out      context, planner_state, output
//	t/TENANT/run/RUN/events                   log
//	t/TENANT/queue  t/TENANT/audit            logs
//	t/TENANT/own/PRINCIPAL/RUN                index: runs of a creator or subject
//	t/TENANT/pend/MS/APPROVAL                 index: pending approvals by time
//	t/TENANT/pendby/PRINCIPAL/MS/APPROVAL     index: the same by creator or subject
//	t/TENANT/pause/PAUSE                      index: the run of a pause, for tokens
//	t/TENANT/apr/APPROVAL                     index: the run of an approval
//	t/TENANT/agent/NAME  t/TENANT/agentv/NAME/VERSION
//	t/TENANT/kv/PLUGIN/KEY
//	t/TENANT/idem/PRINCIPAL/METHOD/PATH/KEY
//	t/TENANT/key/ID                           index of API keys
//	t/TENANT/principal/ID                     principals
//	t/TENANT/settings                         what is set for the tenant
//	key/ID                                    API keys, host-wide: a credential names its tenant
//	tenant/NAME                               tenants seen, for sweeps
//	live/TENANT/RUN                           index: runs with something to drive
//	idle/TENANT/RUN                           index: runs that wait for their client's turn, to count them
//	due/MS/KIND/…                             index: what the sweeper does when
func tenantKey(tenant string) store.Key     { return store.K("t", tenant) }
func runsKey(tenant string) store.Key       { return store.K("t", tenant, "run") }
func runKey(tenant, id string) store.Key    { return store.K("t", tenant, "run", id) }
func queueLog(tenant string) store.Key      { return store.K("t", tenant, "queue") }
func auditChain(tenant string) store.Key    { return store.K("t", tenant, "audit") }
func agentsKey(tenant string) store.Key     { return store.K("t", tenant, "agent") }
func pausesKey(tenant string) store.Key     { return store.K("t", tenant, "pause") }
func approvalsKey(tenant string) store.Key  { return store.K("t", tenant, "apr") }
func pendKey(tenant string) store.Key       { return store.K("t", tenant, "pend") }
func tenantKeysKey(tenant string) store.Key { return store.K("t", tenant, "key") }
func principalsKey(tenant string) store.Key { return store.K("t", tenant, "principal") }
func principalKey(tenant, id string) store.Key {
	return store.K("t", tenant, "principal", id)
}
func settingsKey(tenant string) store.Key { return store.K("t", tenant, "settings") }
func tenantsKey() store.Key               { return store.K("tenant") }
func ownKey(tenant, principal string) store.Key {
	return store.K("t", tenant, "own", principal)
}
func pendByKey(tenant, principal string) store.Key {
	return store.K("t", tenant, "pendby", principal)
}
func agentVersionKey(tenant, name string, version uint64) store.Key {
	return store.K("t", tenant, "agentv", name, version)
}
func kvKey(tenant, plugin string) store.Key { return store.K("t", tenant, "kv", plugin) }
func apiKeyKey(id string) store.Key         { return store.K("key", id) }
func runLog(run store.Key) store.Key        { return run.With("events") }
func callsKey(run store.Key) store.Key      { return run.With("call") }
func callKey(run store.Key, c *store.Call) store.Key {
	return run.With("call", c.Frame, c.Turn, c.Index)
}
func frameKey(run store.Key, id int) store.Key       { return run.With("frame", id) }
func messagesKey(run store.Key) store.Key            { return run.With("msg") }
func approvalKey(run store.Key, id string) store.Key { return run.With("apr", id) }
func pauseKey(run store.Key, id string) store.Key    { return run.With("pause", id) }

// The kinds of due entries.
const (
	duePause  = "pause"  // due/MS/pause/TENANT/RUN/PAUSE
	dueWarn   = "warn"   // due/MS/warn/TENANT/RUN/PAUSE
	dueRetain = "retain" // due/MS/retain/TENANT/RUN
	dueIdem   = "idem"   // due/MS/idem/TENANT/… the rest of the idempotency key
)

func dueKey(at time.Time, kind string, rest ...any) store.Key {
	return store.K("due", uint64(at.UnixMilli()), kind).With(rest...)
}

func liveKey(tenant, run string) store.Key { return store.K("live", tenant, run) }
func idleKey(tenant, run string) store.Key { return store.K("idle", tenant, run) }

func ms(t time.Time) uint64 { return uint64(t.UnixMilli()) }
