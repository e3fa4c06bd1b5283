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

	mu       sync.Mutex
	buckets  map[string]*rate.Limiter
	inFlight map[string]int
}

const (
	maxBuckets = 10_000
	// maxInFlight bounds the requests and event streams that one key has open at a time: each may hold an answer that is not
	// read.
	maxInFlight = 64
)

func newLimits(perSecond float64, burst int) *limits {
	return &limits{rate: rate.Limit(perSecond), burst: burst, buckets: map[string]*rate.Limiter{}, inFlight: map[string]int{}}
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

// enter counts a request of a key until leave; false means that it has too many open.
func (l *limits) enter(key string) (leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight[key] >= maxInFlight {
		return nil, false
	}
	l.inFlight[key]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.inFlight[key]--; l.inFlight[key] == 0 {
			delete(l.inFlight, key)
		}
	}, true
}

// concurrent is limit for the requests that are open at the same time.
func (s *Server) concurrent(w http.ResponseWriter, a host.Actor) (leave func(), err error) {
	if s.opts.Dev {
		return func() {}, nil
	}
	leave, ok := s.limits.enter(a.Tenant + "/" + a.KeyID)
	if !ok {
		w.Header().Set("Retry-After", "1")
		return nil, &host.Error{Code: host.CodeRateLimited, Detail: "too many requests are open with this key: read their answers, at most " + strconv.Itoa(maxInFlight) + " at a time"}
	}
	return leave, nil
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
