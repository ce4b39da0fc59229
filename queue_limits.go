package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Limits are how many tasks of a queue may be worked on at a time, and how many handed out in which time, over all
// processes. Each zero value is no limit.
type Limits struct {
	// Running is how many tasks may be leased at a time. A lease that has run out does not count, and so a
	// handler which goes on without its lease, as one does that ignores its context, does not either. Such a lease
	// is extended only while there is a place.
	Running int
	// Rate is how many tasks may be handed out in Per. What was handed out counts, whatever becomes of it: a task that is tried again
	// counts again, and so does one of Again or Release.
	Rate int
	// Per is a second if it is 0, and whole microseconds. Without Rate it is ErrInvalid.
	Per time.Duration
	// Burst is how many tasks may be handed out at once if none was for a while, and 1 if it is 0. In any time of Per at
	// most Rate and Burst together are. The next task goes as soon as a worker asks for it, some milliseconds late: so a Rate is
	// reached with a Burst of as many as it lets go in those. Without Rate it is ErrInvalid.
	Burst int
}

// mostLimit is the most that each number of Limits may be.
const mostLimit = 1_000_000_000

// checked returns the limits with what is meant by 0, or what is wrong with them.
func (l Limits) checked() (Limits, error) {
	wrong := func(what string) (Limits, error) { return Limits{}, fmt.Errorf("%w: %s", ErrInvalid, what) }
	for name, n := range map[string]int{"Running": l.Running, "Rate": l.Rate, "Burst": l.Burst} {
		if n < 0 || n > mostLimit {
			return wrong(fmt.Sprintf("%s of %d", name, n))
		}
	}
	switch {
	case l.Per < 0 || l.Per > store.LongestDuration:
		return wrong(fmt.Sprintf("Per of %v", l.Per))
	case l.Rate == 0 && (l.Per > 0 || l.Burst > 0):
		return wrong("Per or Burst without Rate")
	case l.Rate == 0:
		return l, nil
	case l.Per == 0:
		l.Per = time.Second
	}
	l.Per, l.Burst = time.Duration(store.CeilMicros(l.Per))*time.Microsecond, max(l.Burst, 1)
	if int64(l.Rate) > store.CeilMicros(l.Per) {
		return wrong("Rate of more than one in a microsecond")
	}
	return l, nil
}

// SetLimits limits the queue, in place of the limits that it has; the zero value takes them away. They are kept
// with the queue, as a pause is: Claim, Pop, Wait and Workers of all processes heed them at once, by the server's
// clock.
//
// What is leased goes on. What may not be handed out yet waits in the queue, is not leased, and uses no attempt;
// whoever waits for it is told when it may be.
//
// Pop takes nothing while as many tasks as Running are leased. What it takes counts for Rate, and not for
// Running. Each change begins a new count: of what was handed out before, at most the new Burst stays spent, and nothing if the
// limits before had no Rate. Over a failover that loses writes, as many more may be handed out as were lost. Workers of a build without
// limits get nothing while there are any.
//
// ErrInvalid: a negative number, or one above a billion. After ErrUnknown it may be called again. Permits limit code
// that is no task: see WithPermits.
func (q *Queue) SetLimits(ctx context.Context, l Limits) error {
	l, err := l.checked()
	if err != nil {
		return wrap("set limits", q.name, err)
	}
	return q.change(ctx, "set limits", func() redisexec.Request { return q.store.Limit(store.Limits(l)) })
}

// Limits returns the queue's limits: zero for none, and what is meant where SetLimits was given 0 for Per or Burst.
func (q *Queue) Limits(ctx context.Context) (Limits, error) {
	s, err := q.stats(ctx, "limits")
	return s.Limits, err
}
