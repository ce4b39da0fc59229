package redisexec

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestAttempt_ReturnsWithinReplyGrace of its context's end, however long the server takes.
func TestAttempt_ReturnsWithinReplyGrace(t *testing.T) {
	t.Parallel()
	for name, retry := range policies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(carriedOut.taking(time.Minute))
			bubble(t, s, func(t *testing.T, e *Executor) {
				start := time.Now()
				reply, err := e.Run(endsAfter(t, time.Second), plain(retry))
				require.Equal(t, time.Second+15*time.Millisecond, time.Since(start))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.True(t, reply.Ambiguous)
				if retry == ReadOnly {
					require.NotErrorIs(t, err, ErrUnknown)
				} else {
					require.ErrorIs(t, err, ErrUnknown)
				}
				require.Len(t, s.record().commands, 1)
			})
		})
	}
}

// TestAttempt_AReplyWithinReplyGraceCounts: good or bad, it says more than "unknown".
func TestAttempt_AReplyWithinReplyGraceCounts(t *testing.T) {
	t.Parallel()
	late := time.Second + ReplyGrace - time.Millisecond
	for name, a := range map[string]answer{"done": carriedOut, "rejected": refused, "not sent": unwritten} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			notified := &counter{}
			bubble(t, newServer(a.taking(late)), func(t *testing.T, e *Executor) {
				start := time.Now()
				r := plain(Never)
				r.OnUnknown = notified.outcomeUnknown
				reply, err := e.Run(endsAfter(t, time.Second), r)
				require.Equal(t, late, time.Since(start))
				require.Equal(t, a.value, reply.Value)
				require.False(t, reply.Ambiguous)
				if a.err == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, a.err)
					require.NotErrorIs(t, err, ErrUnknown)
				}
			})
			require.Zero(t, notified.count())
		})
	}
}

// TestAttempt_NotifiesOnUnknownAtOnceAndWhenItHasEnded: an attempt that its caller has left may
// run, or have run, and the connection may hang. When it ends it says whether it may run yet.
func TestAttempt_NotifiesOnUnknownAtOnceAndWhenItHasEnded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late answer
		over bool
	}{
		"done":        {carriedOut, true},
		"nil":         {answer{err: redis.Nil}, true},
		"unknown":     {noReply, false},
		"rejected":    {refused, true},
		"unavailable": {unavailable, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, notified := newServer(test.late.taking(time.Minute)), &counter{}
			bubble(t, s, func(t *testing.T, e *Executor) {
				start := time.Now()
				r := plain(Idempotent)
				r.OnUnknown = notified.outcomeUnknown
				_, err := e.Run(endsAfter(t, time.Second), r)
				require.ErrorIs(t, err, ErrUnknown)
				time.Sleep(58 * time.Second)
				require.Equal(t, []bool{false}, notified.told(), "before the attempt has ended")
				time.Sleep(time.Hour)
				require.Equal(t, []bool{false, test.over}, notified.told())
				notified.mu.Lock()
				defer notified.mu.Unlock()
				require.Equal(t, time.Second+ReplyGrace, notified.times[0].Sub(start))
				require.Equal(t, time.Minute, notified.times[1].Sub(start))
				require.Len(t, s.record().commands, 1, "nothing is sent again for a caller that has left")
			})
		})
	}
}

// TestAttempt_WhoLeavesBeforeItIsSentSendsNothing: then its outcome is known, however long the client
// goes on without a connection.
func TestAttempt_WhoLeavesBeforeItIsSentSendsNothing(t *testing.T) {
	t.Parallel()
	for name, retry := range policies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, notified := newServer(unwritten.taking(time.Minute)), &counter{}
			bubble(t, s, func(t *testing.T, e *Executor) {
				start, r := time.Now(), plain(retry)
				r.OnUnknown = notified.outcomeUnknown
				reply, err := e.Run(endsAfter(t, time.Second), r)
				require.Equal(t, time.Second+ReplyGrace, time.Since(start))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, ErrUnknown)
				require.False(t, reply.Ambiguous)
			})
			require.Zero(t, notified.count(), "there is nothing to undo")
		})
	}
}

// TestAttempt_AServerThatDoesNotGreetIsSentNothing: it accepts a connection, and is quiet.
func TestAttempt_AServerThatDoesNotGreetIsSentNothing(t *testing.T) {
	t.Parallel()
	quiet, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = quiet.Close() }()
	rdb := redis.NewClient(&redis.Options{Addr: quiet.Addr().String()})
	defer func() { _ = rdb.Close() }()
	e := New(rdb)
	_, err = e.Run(endsAfter(t, 50*time.Millisecond), plain(Never))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrUnknown)
}

// TestAttempt_NeedsNoOnUnknown to be left by its caller.
func TestAttempt_NeedsNoOnUnknown(t *testing.T) {
	t.Parallel()
	bubble(t, newServer(carriedOut.taking(time.Minute)), func(t *testing.T, e *Executor) {
		_, err := e.Run(endsAfter(t, time.Second), plain(Never))
		require.ErrorIs(t, err, ErrUnknown)
	}) // and Close waits for the attempt
}

func TestAttempt_DetachedIsSentAfterItsContextHasEnded(t *testing.T) {
	t.Parallel()
	r := plain(Idempotent)
	r.Detached = true

	quick := newServer(carriedOut.taking(ReplyGrace - time.Millisecond))
	bubble(t, quick, func(t *testing.T, e *Executor) {
		reply, err := e.Run(endedContext, r)
		require.NoError(t, err)
		require.Equal(t, int64(7), reply.Value)
		require.Equal(t, []error{nil}, quick.record().contexts, "the client sees a context that goes on")
	})

	slow := newServer(carriedOut.taking(time.Minute))
	bubble(t, slow, func(t *testing.T, e *Executor) {
		start := time.Now()
		_, err := e.Run(endedContext, r)
		require.ErrorIs(t, err, ErrUnknown)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, ReplyGrace, time.Since(start))
	})

	failing := newServer(noReply)
	bubble(t, failing, func(t *testing.T, e *Executor) {
		_, err := e.Run(endedContext, r)
		require.ErrorIs(t, err, ErrUnknown)
		require.Len(t, failing.record().commands, 1, "nothing is repeated after the context has ended")
	})

	attached := newServer(carriedOut.taking(time.Minute))
	bubble(t, attached, func(t *testing.T, e *Executor) {
		_, _ = e.Run(endsAfter(t, time.Second), r)
		require.Equal(t, []error{nil}, attached.record().contexts)
	})
}

func TestAttempt_SendsAnUnknownScriptInFull(t *testing.T) {
	t.Parallel()
	request := script.Request([]any{"key"}, "token")
	require.Equal(t, "key", request.Key())

	s := newServer(unknownSHA, carriedOut)
	bubble(t, s, func(t *testing.T, e *Executor) {
		reply, err := e.Run(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, int64(7), reply.Value)
		require.Equal(t, [][]any{byHash, inFull}, s.record().commands)
		require.Equal(t, byHash, request.Args, "the request is left as it was")
	})

	// The digest was written, the script was not: nothing was carried out.
	s = newServer(unknownSHA, unwritten)
	bubble(t, s, func(t *testing.T, e *Executor) {
		_, err := e.Run(t.Context(), request)
		require.ErrorIs(t, err, errPool)
		require.NotErrorIs(t, err, ErrUnknown)
	})

	s = newServer(unknownSHA, noReply, carriedOut)
	bubble(t, s, func(t *testing.T, e *Executor) {
		reply, err := e.Run(t.Context(), request)
		require.NoError(t, err)
		require.True(t, reply.Ambiguous)
		require.Equal(t, [][]any{byHash, inFull, byHash}, s.record().commands, "the next attempt begins with the digest")
	})
}

// TestAttempt_NoScriptOfAPlainCommandIsAnError: there is no script to send.
func TestAttempt_NoScriptOfAPlainCommandIsAnError(t *testing.T) {
	t.Parallel()
	s := newServer(unknownSHA)
	bubble(t, s, func(t *testing.T, e *Executor) {
		_, err := e.Run(t.Context(), plain(Idempotent))
		require.ErrorIs(t, err, errNoScript)
		require.Len(t, s.record().commands, 1)
	})
}

// TestAttempt_IsNotRepeatedByTheClient: go-redis would send a command again whose
// connection breaks, and does not do so here. Its own client and server take part.
func TestAttempt_IsNotRepeatedByTheClient(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	var received atomic.Int64
	m.Server().SetPreHook(func(c *miniserver.Peer, command string, _ ...string) bool {
		if command == "SET" {
			received.Add(1)
			c.Close()
			return true
		}
		return false
	})
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), MaxRetries: 3})
	defer func() { _ = rdb.Close() }()
	e := New(rdb)
	defer e.Close(t.Context())
	_, err := e.Run(t.Context(), plain(Never))
	require.ErrorIs(t, err, ErrUnknown)
	require.EqualValues(t, 1, received.Load())

	require.Equal(t, Unknown, e.Pipeline(t.Context(), []Request{plain(Never)})[0].Outcome)
	require.EqualValues(t, 2, received.Load())

	_ = rdb.Set(t.Context(), "key", "value", 0).Err()
	require.EqualValues(t, 6, received.Load(), "go-redis repeats it where it may")
}

// TestAttempt_WithoutAConnectionIsNotSent: the client's error is definite then.
func TestAttempt_WithoutAConnectionIsNotSent(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	defer func() { _ = rdb.Close() }()
	e := New(rdb)
	defer e.Close(t.Context())
	_, err := e.Run(t.Context(), plain(Idempotent))
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrUnknown)
	require.Equal(t, NotSent, e.Pipeline(t.Context(), []Request{plain(Never)})[0].Outcome)
}

// TestAttempt_ExactlyOneDealsWithTheResult: a caller that leaves at the very moment of the
// reply either has it, or OnUnknown is notified.
func TestAttempt_ExactlyOneDealsWithTheResult(t *testing.T) {
	t.Parallel()
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			e, notified := New(newServer(carriedOut.taking(time.Second+ReplyGrace))), &counter{}
			r := plain(Never)
			r.OnUnknown = notified.outcomeUnknown
			_, err := e.Run(endsAfter(t, time.Second), r)
			e.Close(t.Context())
			if err == nil {
				require.Zero(t, notified.count())
			} else {
				require.ErrorIs(t, err, ErrUnknown)
				require.Len(t, notified.told(), 2)
				require.Contains(t, notified.told(), true)
			}
		})
	}
}
