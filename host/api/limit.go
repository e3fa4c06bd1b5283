package api

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pawlhost/pawl/host"
)

// limits are token buckets, one a key. There are as many as keys in use, and full ones are forgotten.
type limits struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

const maxBuckets = 10_000

func newLimits(perSecond float64, burst int) *limits {
	return &limits{rate: rate.Limit(perSecond), burst: burst, buckets: map[string]*rate.Limiter{}}
}

// take takes one token of the key's bucket, or says how long to wait for one.
func (l *limits) take(key string, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			for k, old := range l.buckets {
				if old.TokensAt(now) >= float64(l.burst) {
					delete(l.buckets, k)
				}
			}
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.buckets[key] = b
	}
	l.mu.Unlock()
	if b.AllowN(now, 1) {
		return 0
	}
	return time.Duration(float64(time.Second) * (1 - b.TokensAt(now)) / float64(l.rate))
}

// limit refuses a request of an actor who asks too often. w may be nil (a WebSocket frame).
func (s *Server) limit(w http.ResponseWriter, a host.Actor) error {
	if s.opts.Dev {
		return nil
	}
	wait := s.limits.take(a.Tenant+"/"+a.KeyID, time.Now())
	if wait <= 0 {
		return nil
	}
	seconds := strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
	if w != nil {
		w.Header().Set("Retry-After", seconds)
	}
	return &host.Error{Code: host.CodeRateLimited, Detail: "too many requests with this key: wait " + seconds + " s"}
}
