package redisexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var policies = map[string]RetryPolicy{"never": Never, "idempotent": Idempotent, "read only": ReadOnly}

// decision is what Run makes of a request whose attempts end like this.
type decision struct {
	answers    []answer
	retry      RetryPolicy
	persistent bool

	want        any   // the reply
	err         error // that it wraps
	unknown     bool  // it is an ErrUnknown
	unavailable bool  // it is an ErrUnavailable
	ambiguous   bool
	sent        int // how often it was sent
}

// decisions is the table over Run, row by row.
var decisions = map[string]decision{
	"done, never":      {answers: []answer{carriedOut}, retry: Never, want: int64(7), sent: 1},
	"done, idempotent": {answers: []answer{carriedOut}, retry: Idempotent, want: int64(7), sent: 1},
	"done, read only":  {answers: []answer{carriedOut}, retry: ReadOnly, want: int64(7), sent: 1},
	"nil reply":        {answers: []answer{{err: redis.Nil}}, retry: Never, sent: 1},
	"deferred error":   {answers: []answer{{err: errRefused, deferred: true}}, retry: Never, err: errRefused, sent: 1},

	"rejected, never":      {answers: []answer{refused}, retry: Never, err: errRefused, sent: 1},
	"rejected, idempotent": {answers: []answer{refused}, retry: Idempotent, err: errRefused, sent: 1},
	"rejected, read only":  {answers: []answer{refused}, retry: ReadOnly, err: errRefused, sent: 1},

	"not sent, never":      {answers: []answer{unwritten}, retry: Never, err: errPool, unavailable: true, sent: 1},
	"not sent, idempotent": {answers: []answer{unwritten}, retry: Idempotent, err: errPool, unavailable: true, sent: 1},
	"not sent, read only":  {answers: []answer{unwritten}, retry: ReadOnly, err: errPool, unavailable: true, sent: 1},

	"not sent for a moment, never, persistent": {
		answers: []answer{unwritten, unwritten, carriedOut}, retry: Never, persistent: true, want: int64(7), sent: 3,
	},
	"not sent for a moment, idempotent, persistent": {
		answers: []answer{unwritten, unavailable, unwritten, carriedOut}, retry: Idempotent, persistent: true, want: int64(7), sent: 4,
	},
	"not sent for a moment, read only, persistent": {
		answers: []answer{unwritten, unwritten, carriedOut}, retry: ReadOnly, persistent: true, want: int64(7), sent: 3,
	},
	"not sent, then rejected, persistent": {
		answers: []answer{unwritten, refused}, retry: Never, persistent: true, err: errRefused, sent: 2,
	},
	"not sent, then unknown, persistent": {
		answers: []answer{unwritten, noReply}, retry: Never, persistent: true, err: errTimeout, unknown: true, ambiguous: true, sent: 2,
	},
	"unknown, not sent, then done, persistent": {
		answers: []answer{noReply, unwritten, carriedOut}, retry: Idempotent, persistent: true, want: int64(7), ambiguous: true, sent: 3,
	},
	"not sent for good, never":      {answers: []answer{closed}, retry: Never, err: redis.ErrClosed, sent: 1},
	"not sent for good, idempotent": {answers: []answer{closed}, retry: Idempotent, err: redis.ErrClosed, sent: 1},
	"not sent for good, read only":  {answers: []answer{closed}, retry: ReadOnly, err: redis.ErrClosed, sent: 1},
	"not sent for good, persistent": {answers: []answer{closed}, retry: Never, persistent: true, err: redis.ErrClosed, sent: 1},
	"not sent, then for good":       {answers: []answer{unwritten, closed}, retry: Never, persistent: true, err: redis.ErrClosed, sent: 2},
	"unknown, then not sent for good": {
		answers: []answer{noReply, closed}, retry: Idempotent, err: redis.ErrClosed, unknown: true, ambiguous: true, sent: 2,
	},

	"unavailable for a moment, never":      {answers: []answer{unavailable, unavailable, carriedOut}, retry: Never, want: int64(7), sent: 3},
	"unavailable for a moment, idempotent": {answers: []answer{unavailable, unavailable, carriedOut}, retry: Idempotent, want: int64(7), sent: 3},
	"unavailable for a moment, read only":  {answers: []answer{unavailable, unavailable, carriedOut}, retry: ReadOnly, want: int64(7), sent: 3},
	"unavailable, then rejected":           {answers: []answer{unavailable, refused}, retry: Never, err: errRefused, sent: 2},

	"unknown, never":      {answers: []answer{noReply, carriedOut}, retry: Never, err: errTimeout, unknown: true, ambiguous: true, sent: 1},
	"unknown, idempotent": {answers: []answer{noReply}, retry: Idempotent, err: errTimeout, unknown: true, ambiguous: true, sent: 4},
	"unknown, read only":  {answers: []answer{noReply}, retry: ReadOnly, err: errTimeout, ambiguous: true, sent: 4},

	"unknown once, idempotent": {
		answers: []answer{noReply, carriedOut}, retry: Idempotent, want: int64(7), ambiguous: true, sent: 2,
	},
	"unknown three times, idempotent": {
		answers: []answer{noReply, noReply, noReply, carriedOut}, retry: Idempotent, want: int64(7), ambiguous: true, sent: 4,
	},
	"unknown once, read only": {
		answers: []answer{noReply, carriedOut}, retry: ReadOnly, want: int64(7), ambiguous: true, sent: 2,
	},

	// The rule marked * in the table.
	"unknown, then rejected, idempotent": {
		answers: []answer{noReply, refused}, retry: Idempotent, err: errRefused, unknown: true, ambiguous: true, sent: 2,
	},
	"unknown, then rejected, read only": {
		answers: []answer{noReply, refused}, retry: ReadOnly, err: errRefused, ambiguous: true, sent: 2,
	},
	"unknown, then not sent, idempotent": {
		answers: []answer{noReply, unwritten}, retry: Idempotent, err: errPool, unknown: true, ambiguous: true, sent: 2,
	},
	"unknown, then not sent, read only": {
		answers: []answer{noReply, unwritten}, retry: ReadOnly, err: errPool, unavailable: true, ambiguous: true, sent: 2,
	},
	"unknown, unavailable, then done": {
		answers: []answer{noReply, unavailable, carriedOut}, retry: Idempotent, want: int64(7), ambiguous: true, sent: 3,
	},
}

// TestExecutor_DecidesByOutcomeAndPolicy: with a context that can end, and with one that
// cannot.
func TestExecutor_DecidesByOutcomeAndPolicy(t *testing.T) {
	t.Parallel()
	for name, d := range decisions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.check(t, (*testing.T).Context)
			d.check(t, func(*testing.T) context.Context { return context.Background() })
		})
	}
}

func (d decision) check(t *testing.T, ctx func(*testing.T) context.Context) {
	t.Helper()
	s, notified := newServer(d.answers...), &counter{}
	bubble(t, s, func(t *testing.T, e *Executor) {
		r := plain(d.retry)
		r.OnUnknown = notified.outcomeUnknown
		if d.persistent {
			r.Outage = new(Outage)
		}
		reply, err := e.Run(ctx(t), r)
		require.Equal(t, d.want, reply.Value)
		require.Equal(t, d.ambiguous, reply.Ambiguous)
		require.Len(t, s.record().commands, d.sent)
		require.Equal(t, s.record().at[d.sent-1], reply.Sent, "the time of the last attempt")
		if d.err == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, d.err)
		}
		require.Equal(t, d.unavailable, errors.Is(err, ErrUnavailable))
		if d.unknown {
			require.ErrorIs(t, err, ErrUnknown)
			require.Equal(t, 1, notified.count())
		} else {
			require.NotErrorIs(t, err, ErrUnknown)
			require.Zero(t, notified.count())
		}
	})
}

// TestExecutor_UnavailableIsTriedAgainForTenSeconds: and is then an error of the server's,
// or ErrUnknown if an attempt before stayed without a reply.
func TestExecutor_UnavailableIsTriedAgainForTenSeconds(t *testing.T) {
	t.Parallel()
	for name, retry := range policies {
		for _, ambiguous := range []bool{false, true} {
			if ambiguous && retry == Never {
				continue // a lost reply is the end of it
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s, notified := newServer(unavailable), &counter{}
				if ambiguous {
					s = newServer(noReply, unavailable)
				}
				bubble(t, s, func(t *testing.T, e *Executor) {
					start := time.Now()
					r := plain(retry)
					r.OnUnknown = notified.outcomeUnknown
					reply, err := e.Run(t.Context(), r)
					require.ErrorIs(t, err, errLoading)
					require.Equal(t, !ambiguous || retry == ReadOnly, errors.Is(err, ErrUnavailable))
					require.Equal(t, ambiguous, reply.Ambiguous)
					require.Greater(t, time.Since(start), 10*time.Second)
					require.LessOrEqual(t, time.Since(start), 10*time.Second+backoffLast+backoffLeast)
					require.Greater(t, len(s.record().commands), 20, "half a second apart at most")
					if ambiguous && retry == Idempotent {
						require.ErrorIs(t, err, ErrUnknown)
						require.Equal(t, 1, notified.count())
					} else {
						require.NotErrorIs(t, err, ErrUnknown)
						require.Zero(t, notified.count())
					}
				})
			})
		}
	}
}

// TestExecutor_APersistentRequestWaitsOutAnOutage: for ten seconds from when the outage
// began or, if it came later, from when its caller came.
func TestExecutor_APersistentRequestWaitsOutAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(unwritten)
	bubble(t, s, func(t *testing.T, e *Executor) {
		r := plain(Never)
		r.Outage, r.Arrived = new(Outage), time.Time{}
		run := func(least, most time.Duration) {
			t.Helper()
			start := time.Now()
			_, err := e.Run(t.Context(), r)
			require.ErrorIs(t, err, ErrUnavailable)
			require.ErrorIs(t, err, errPool)
			require.GreaterOrEqual(t, time.Since(start), least)
			require.LessOrEqual(t, time.Since(start), most+backoffLast+backoffLeast)
		}
		before := r.Outage.Arrival()
		require.Zero(t, before)
		later := make(chan time.Time, 1)
		time.AfterFunc(4*time.Second, func() { later <- r.Outage.Arrival() })
		run(10*time.Second, 10*time.Second)
		r.Arrived = <-later
		require.NotZero(t, r.Arrived)
		run(4*time.Second-backoffLast-backoffLeast, 4*time.Second) // it came four seconds after the first
		r.Arrived = before
		sent := len(s.record().commands)
		run(0, 0)
		require.Len(t, s.record().commands, sent, "one has just failed")
		time.Sleep(backoffLast + time.Millisecond)
		run(0, 0)
		require.Len(t, s.record().commands, sent+1)
		r.Arrived = r.Outage.Arrival()
		run(10*time.Second, 10*time.Second)

		s.answers, r.Arrived = []answer{carriedOut, unwritten}, r.Outage.Arrival()
		_, err := e.Run(t.Context(), r)
		require.NoError(t, err)
		require.Zero(t, r.Outage.Arrival(), "it is over")
		r.Arrived = before
		run(10*time.Second, 10*time.Second)
	})
}

// TestExecutor_StopEndsARequest: at once in a pause, and within ReplyGrace while a reply is
// waited for; with any context.
func TestExecutor_StopEndsARequest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first   answer
		unknown bool
		within  time.Duration
		told    int
	}{
		"waiting for a reply":  {carriedOut.taking(time.Minute), true, ReplyGrace, 2},
		"between two attempts": {unavailable, false, 0, 0},
		"while it is not sent": {unwritten.taking(time.Minute), false, ReplyGrace, 0},
	} {
		for _, endless := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				notified := &counter{}
				bubble(t, newServer(test.first), func(t *testing.T, e *Executor) {
					ctx, stop := context.Background(), make(chan struct{})
					if !endless {
						ctx = endsAfter(t, time.Hour)
					}
					r := plain(Never)
					r.Stop, r.OnUnknown = stop, notified.outcomeUnknown
					time.AfterFunc(time.Second, func() { close(stop) })
					start := time.Now()
					_, err := e.Run(ctx, r)
					require.ErrorIs(t, err, ErrStopped)
					require.Equal(t, test.unknown, errors.Is(err, ErrUnknown))
					require.LessOrEqual(t, time.Since(start), time.Second+test.within)
				})
				require.Equal(t, test.told, notified.count(), "what it may have done is undone")
			})
		}
	}
}

func TestExecutor_PausesGrow(t *testing.T) {
	t.Parallel()
	s := newServer(unavailable)
	bubble(t, s, func(t *testing.T, e *Executor) {
		_, err := e.Run(t.Context(), plain(Never))
		require.Error(t, err)
		var pauses []time.Duration
		sent := s.record().at
		for i := range len(sent) - 1 {
			pause := sent[i+1].Sub(sent[i])
			require.GreaterOrEqual(t, pause, backoffLeast)
			require.LessOrEqual(t, pause, backoffLeast+min(backoffFirst<<min(i, 10), backoffLast))
			pauses = append(pauses, pause)
		}
		require.Greater(t, slices.Max(pauses), 50*time.Millisecond, "they grow")
	})
}

// TestExecutor_AnEndedContextSendsNothing: the error is the context's, and definite.
func TestExecutor_AnEndedContextSendsNothing(t *testing.T) {
	t.Parallel()
	for _, retry := range policies {
		s, notified := newServer(carriedOut), &counter{}
		bubble(t, s, func(t *testing.T, e *Executor) {
			r := plain(retry)
			r.OnUnknown = notified.outcomeUnknown
			reply, err := e.Run(endedContext, r)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, ErrUnknown)
			require.False(t, reply.Ambiguous)
			require.Empty(t, s.record().commands)
			require.Zero(t, notified.count())
		})
	}
}

// TestExecutor_AContextThatEndsInAPauseEndsIt: what was unknown before stays unknown.
func TestExecutor_AContextThatEndsInAPauseEndsIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first   answer
		retry   RetryPolicy
		unknown bool
	}{
		"unavailable":        {first: unavailable, retry: Idempotent},
		"unknown":            {first: noReply, retry: Idempotent, unknown: true},
		"unknown, read only": {first: noReply, retry: ReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, notified := newServer(test.first, carriedOut), &counter{}
			bubble(t, s, func(t *testing.T, e *Executor) {
				// The first pause is at least backoffLeast.
				ctx, start := endsAfter(t, backoffLeast/2), time.Now()
				r := plain(test.retry)
				r.OnUnknown = notified.outcomeUnknown
				_, err := e.Run(ctx, r)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, backoffLeast/2, time.Since(start))
				require.Len(t, s.record().commands, 1)
				if test.unknown {
					require.ErrorIs(t, err, ErrUnknown)
					require.Equal(t, 1, notified.count())
				} else {
					require.NotErrorIs(t, err, ErrUnknown)
					require.Zero(t, notified.count())
				}
			})
		})
	}
}

// TestExecutor_ARefusalAsTheContextEndsIsUnavailable: the error says so where it cannot have
// been the end of the context that kept the request from being sent. It names no cause twice.
func TestExecutor_ARefusalAsTheContextEndsIsUnavailable(t *testing.T) {
	t.Parallel()
	late := context.DeadlineExceeded
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for name, test := range map[string]struct {
		err         error
		written     bool
		unavailable bool
		text        string // empty for any
	}{
		"refused dial":       {dial(syscall.ECONNREFUSED), false, true, ErrUnavailable.Error() + ": context deadline exceeded: dial tcp: connection refused"},
		"wrapped":            {fmt.Errorf("node: %w", dial(syscall.ECONNREFUSED)), true, true, ""},
		"pool timeout":       {redis.ErrPoolTimeout, false, true, ""},
		"pool exhausted":     {redis.ErrPoolExhausted, true, true, ""},
		"loading":            {errLoading, true, true, ""},
		"loading, at first":  {errLoading, false, true, ""},
		"closed client":      {redis.ErrClosed, false, false, ""},
		"the context's":      {late, false, false, "context deadline exceeded"},
		"the context's dial": {dial(late), false, false, ""},
		"a dial without end": {dial(os.ErrDeadlineExceeded), false, false, ""},
		"end of connection":  {io.EOF, false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, newServer(answer{err: test.err, unwritten: !test.written, after: 25 * time.Millisecond}), func(t *testing.T, e *Executor) {
				_, err := e.Run(endsAfter(t, 20*time.Millisecond), plain(Never))
				require.ErrorIs(t, err, test.err)
				require.NotErrorIs(t, err, ErrUnknown)
				require.Equal(t, test.unavailable, errors.Is(err, ErrUnavailable), "%v", err)
				require.Equal(t, name != "closed client", errors.Is(err, late))
				if test.text != "" {
					require.Equal(t, test.text, err.Error())
				}
			})
		})
	}
}

// TestExecutor_ErrorsNameNoCauseTwice: an earlier attempt failed by a timeout of the
// client's own, and then the context ends.
func TestExecutor_ErrorsNameNoCauseTwice(t *testing.T) {
	t.Parallel()
	bubble(t, newServer(answer{err: context.DeadlineExceeded, unwritten: true}), func(t *testing.T, e *Executor) {
		r := plain(Never)
		r.Outage = new(Outage)
		_, err := e.Run(endsAfter(t, time.Second), r)
		require.Equal(t, ErrUnavailable.Error()+": context deadline exceeded", err.Error())
	})
}

func TestExecutor_CloseWaitsForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(carriedOut.taking(time.Minute))
		e, start := New(s), time.Now()
		_, err := e.Run(endsAfter(t, time.Second), plain(Never))
		require.ErrorIs(t, err, ErrUnknown)
		e.Go(func() { time.Sleep(30 * time.Second) })
		e.Close(t.Context())
		require.Equal(t, time.Minute, time.Since(start), "for the attempt that its caller has left")

		_, err = e.Run(t.Context(), plain(Never))
		require.NoError(t, err, "a request after Close is carried out")
		require.Equal(t, 2*time.Minute, time.Since(start))
	})
}

func TestExecutor_CloseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, start := New(newServer(carriedOut)), time.Now()
		e.Go(func() { time.Sleep(time.Minute) })
		e.Close(endsAfter(t, time.Second))
		require.Equal(t, time.Second, time.Since(start))
		time.Sleep(time.Minute)
	})
}

// TestExecutor_RepeatChangesTheRequest: what is sent after a lost reply has other arguments,
// whatever the policy says; what was only refused is sent again as it was.
func TestExecutor_RepeatChangesTheRequest(t *testing.T) {
	t.Parallel()
	s, notified, repeats := newServer(noReply, unavailable, noReply, carriedOut), &counter{}, 0
	bubble(t, s, func(t *testing.T, e *Executor) {
		r := plain(Never)
		r.OnUnknown = notified.outcomeUnknown
		r.Repeat = func() []any { repeats++; return []any{"set", "key", repeats} }
		reply, err := e.Run(t.Context(), r)
		require.NoError(t, err)
		require.True(t, reply.Ambiguous)
		require.Equal(t, [][]any{setKey, {"set", "key", 1}, {"set", "key", 1}, {"set", "key", 2}}, s.record().commands)
		require.Zero(t, notified.count())
	})
	s = newServer(noReply)
	bubble(t, s, func(t *testing.T, e *Executor) {
		r := plain(Never)
		r.Repeat = func() []any { return setKey }
		_, err := e.Run(t.Context(), r)
		require.ErrorIs(t, err, ErrUnknown)
		require.Len(t, s.record().commands, 1+maxRepeats)
	})
}
