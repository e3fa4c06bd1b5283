package policy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"
)

// Codes of evaluations that failed. Each comes with a refusal.
const (
	CodeTimeout   = "policy_timeout"   // not finished within the deadline
	CodeError     = "policy_error"     // a builtin failed, a type did not fit, a panic
	CodeUndefined = "policy_undefined" // no decision
	CodeConflict  = "policy_conflict"  // one rule, two values
	CodeShape     = "policy_shape"     // a decision, a stop or a refusal of the wrong shape
	CodeInput     = "policy_input"     // the input is not JSON, nested too deep or too large
)

// failure is an evaluation without a usable value. detail is for the operator's log: where it happened and of which kind.
// It holds no text of OPA, since a builtin's message repeats its operands, which are arguments.
type failure struct {
	code   string
	detail string
}

// maxAbandoned is how many evaluations may go on after their deadline before new ones are refused at once. A call of one
// builtin cannot be interrupted (only the evaluator and six builtins look at a cancel), so that a rule which hangs
// would otherwise collect goroutines with every call.
const maxAbandoned = 64

// evaluator runs prepared queries under a deadline.
type evaluator struct {
	deadline  time.Duration
	patterns  cache.InterQueryValueCache // compiled regular expressions and globs; OPA's own cache holds 100 for the process
	abandoned atomic.Int64               // that still run
	total     atomic.Int64
}

// run gives work a deadline and returns its value, or why there is none. It returns even if the work does not stop; then
// the late result is dropped, so work may not touch what the caller owns. A panic of the work is a failure.
func (e *evaluator) run(work func(topdown.Cancel) (ast.Value, *failure)) (ast.Value, *failure) {
	if e.abandoned.Load() >= maxAbandoned {
		return nil, &failure{CodeTimeout, fmt.Sprintf("%d evaluations are still running after their deadline", maxAbandoned)}
	}
	type result struct {
		value ast.Value
		fail  *failure
	}
	var (
		done   = make(chan result, 1)
		cancel = topdown.NewCancel()
		state  atomic.Int32 // 0 running, 1 finished, 2 abandoned
	)
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r = result{fail: &failure{CodeError, "panic in the evaluation"}}
			}
			if !state.CompareAndSwap(0, 1) {
				e.abandoned.Add(-1)
			}
			done <- r
		}()
		grow()
		r.value, r.fail = work(cancel)
	}()
	timer := time.NewTimer(e.deadline)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.fail
	case <-timer.C:
		cancel.Cancel()
	}
	// Most rules stop within microseconds of a cancel; what does not is in a builtin.
	timer.Reset(grace)
	select {
	case r := <-done:
		return r.value, r.fail
	case <-timer.C:
	}
	e.abandoned.Add(1)
	if !state.CompareAndSwap(0, 2) { // it finished just now
		e.abandoned.Add(-1)
	} else {
		e.total.Add(1)
	}
	return nil, &failure{CodeTimeout, fmt.Sprintf("no decision within %s, and a builtin that cannot be interrupted still runs", e.deadline)}
}

// maxPatterns bounds the cache of patterns. When it is full, some other one goes.
const maxPatterns = 2000

func newEvaluator(deadline time.Duration) evaluator {
	if deadline <= 0 {
		deadline = DefaultDeadline
	}
	entries := maxPatterns
	config := &cache.Config{InterQueryBuiltinValueCache: cache.InterQueryBuiltinValueCacheConfig{MaxNumEntries: &entries}}
	return evaluator{deadline: deadline, patterns: cache.NewInterQueryValueCache(context.Background(), config)}
}

// grow makes the goroutine's stack large enough at once. The evaluator recurses deeply, and a new goroutine would double
// its stack and copy all frames five times on the way, a quarter of the time of a small decision.
//
//go:noinline
func grow() byte {
	var frames [64 << 10]byte
	return frames[len(frames)-1-int(zero)]
}

var zero byte

// grace is how long a cancelled evaluation may take to stop before it counts as abandoned.
const grace = 10 * time.Millisecond

// evaluate returns the single value of q. The caller's cancellation is ignored on purpose: the result may be recorded, and a
// client that hangs up must not turn an allowed call into a refused one. The deadline bounds it anyway.
func (e *evaluator) evaluate(ctx context.Context, q *rego.PreparedEvalQuery, input ast.Value, cancel topdown.Cancel) (ast.Value, *failure) {
	results, err := q.Eval(context.WithoutCancel(ctx),
		rego.EvalParsedInput(input),
		rego.EvalExternalCancel(cancel), // instead of one more goroutine that waits for the context
		rego.EvalMetrics(metrics.NoOp()),
		rego.EvalInterQueryBuiltinValueCache(e.patterns),
		rego.EvalGenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t.Value, nil }))
	if err != nil {
		return nil, failed(err)
	}
	if len(results) != 1 || len(results[0].Expressions) != 1 {
		return nil, &failure{CodeUndefined, "the query has no value"}
	}
	v, ok := results[0].Expressions[0].Value.(ast.Value)
	if !ok {
		return nil, &failure{CodeShape, "the query's value is not a Rego value"}
	}
	return v, nil
}

func failed(err error) *failure {
	if topdown.IsCancel(err) {
		return &failure{CodeTimeout, "stopped at the deadline"}
	}
	code, detail := CodeError, "evaluation failed"
	if e, ok := errors.AsType[*topdown.Error](err); ok {
		if e.Code == topdown.ConflictErr {
			code = CodeConflict
		}
		detail = e.Code
		if e.Location != nil {
			detail = fmt.Sprintf("%s at %s:%d", e.Code, e.Location.File, e.Location.Row)
		}
	}
	return &failure{code, detail}
}
