package redisexec

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// one is a server whose client says that it is the only one.
type one struct{ *server }

func (one) Options() *redis.Options { return &redis.Options{} }

const (
	// roundTrip is how long the requests take that keep a lane busy: less than it has patience.
	roundTrip = lanePatience - 500*time.Microsecond
	// earlier is before the end of the first round trip.
	earlier = time.Millisecond
)

// small returns a request that may share a pipeline.
func small(args ...any) Request {
	return smallOf("key", args...)
}

// smallOf is small for a key.
func smallOf(key string, args ...any) Request {
	r := Plain(append([]any{"set", key}, args...)...)
	r.Small = true
	return r
}

// laneTest is an executor whose lane is busy, so that what comes waits.
type laneTest struct {
	*testing.T
	*Executor
	server *server
	calls  sync.WaitGroup
}

// inLane runs a test on a fake clock. The first requests, which are under way alone, are
// answered after a round trip; the others as given.
func inLane(t *testing.T, test func(l *laneTest), answers ...answer) {
	t.Helper()
	s := newServer(carriedOut.taking(roundTrip), carriedOut.taking(roundTrip))
	s.answers = append(s.answers, answers...)
	bubble(t, one{s}, func(t *testing.T, e *Executor) {
		l := &laneTest{T: t, Executor: e, server: s}
		for range alonePerServer {
			l.do(t.Context(), small("alone"))
		}
		test(l)
		l.calls.Wait()
	})
}

// done is what came of a request.
type done struct {
	reply Reply
	err   error
	took  time.Duration
}

// do runs a request in the background, and returns when it is under way or waits. The test waits
// for it with the function it returns.
func (l *laneTest) do(ctx context.Context, r Request) func() done {
	result, start := make(chan done, 1), time.Now()
	l.calls.Go(func() {
		reply, err := l.Executor.Run(ctx, r)
		result <- done{reply, err, time.Since(start)}
	})
	synctest.Wait()
	return func() done { return <-result }
}

// sent returns the last argument of each command that was sent in a pipeline.
func (l *laneTest) sent() (last []any) {
	for _, args := range l.server.record().commands[alonePerServer:] {
		last = append(last, args[len(args)-1])
	}
	return last
}

func TestLane_WhatComesMeanwhileSharesAPipeline(t *testing.T) {
	t.Parallel()
	inLane(t, func(l *laneTest) {
		var results []func() done
		start := time.Now()
		for i := range 5 {
			ctx, cancel := context.WithCancel(l.Context())
			defer cancel()
			if i == 1 {
				ctx = context.Background()
			}
			results = append(results, l.do(ctx, small(i)))
		}
		require.Empty(l, l.sent())
		first, second := results[0](), results[1]()
		require.NoError(l, first.err)
		require.Equal(l, "first", first.reply.Value)
		require.Equal(l, start.Add(roundTrip), first.reply.Sent)
		require.Equal(l, roundTrip+10*time.Millisecond, first.took)
		require.Equal(l, "second", second.reply.Value)
		require.ErrorIs(l, results[2]().err, errRefused)
		require.ErrorIs(l, results[3]().err, ErrUnknown)
		require.ErrorIs(l, results[4]().err, ErrUnavailable)
		require.Equal(l, []any{0, 1, 2, 3, 4}, l.sent(), "in order")
		require.Equal(l, []int{5}, l.server.record().pipelines)
		require.Equal(l, make([]error, 7), l.server.record().contexts)
	}, answer{value: "first"}.taking(10*time.Millisecond), answer{value: "second"}, refused, noReply, unwritten)
}

// TestLane_IsForSmallRequestsToOneServer: a large one, or one that may go anywhere, is sent by
// itself whatever is under way.
func TestLane_IsForSmallRequestsToOneServer(t *testing.T) {
	t.Parallel()
	inLane(t, func(l *laneTest) {
		large := small("large")
		large.Small = false
		require.Equal(l, time.Duration(0), l.do(l.Context(), large)().took)
		require.Empty(l, l.server.record().pipelines)
	}, carriedOut)
	for name, rdb := range map[string]redis.UniversalClient{
		"autopipeline, perhaps": newServer(carriedOut.taking(time.Second)),
		"node unknown":          &cluster{server: newServer(carriedOut.taking(time.Second)), err: errors.New("no such node")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, rdb, func(t *testing.T, e *Executor) {
				l := &laneTest{T: t, Executor: e}
				for range 5 {
					l.do(t.Context(), small())
				}
				start := time.Now()
				l.calls.Wait()
				require.Equal(t, time.Second, time.Since(start))
			})
		})
	}
}

// TestLane_WhoLeavesBeforeItIsSentSendsNothing: that is definite, whatever made it leave.
func TestLane_WhoLeavesBeforeItIsSentSendsNothing(t *testing.T) {
	t.Parallel()
	inLane(t, func(l *laneTest) {
		notified := &counter{}
		leaving := small("leaving")
		leaving.OnUnknown = notified.outcomeUnknown
		stopped, late := leaving, leaving
		stop := make(chan struct{})
		stopped.Stop, late.Until = stop, time.Now().Add(earlier)
		time.AfterFunc(earlier, func() { close(stop) })
		for want, result := range map[error]func() done{
			context.DeadlineExceeded: l.do(endsAfter(l.T, earlier), leaving),
			ErrStopped:               l.do(l.Context(), stopped),
			ErrUnavailable:           l.do(l.Context(), late),
		} {
			r := result()
			require.ErrorIs(l, r.err, want)
			require.NotErrorIs(l, r.err, ErrUnknown)
			require.False(l, r.reply.Ambiguous)
			require.Equal(l, earlier, r.took)
		}
		detached := small("detached")
		detached.Detached = true
		r := l.do(endsAfter(l.T, time.Microsecond), detached)()
		require.ErrorIs(l, r.err, ErrUnknown)
		require.Equal(l, time.Microsecond+ReplyGrace, r.took)
		time.Sleep(time.Second)
		require.Equal(l, []any{"detached"}, l.sent())
		require.Zero(l, notified.count())
	}, carriedOut.taking(time.Second))
}

// TestLane_WhoLeavesLaterIsUnknown: and is notified, at once and when the pipeline has ended. The
// others have their replies.
func TestLane_WhoLeavesLaterIsUnknown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late answer
		over bool
	}{"done": {carriedOut, true}, "no reply": {noReply, false}, "refused": {refused, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLane(t, func(l *laneTest) {
				notified, other := &counter{}, &counter{}
				leaving, staying := small("leaving"), small("staying")
				leaving.OnUnknown, staying.OnUnknown = notified.outcomeUnknown, other.outcomeUnknown
				r, s := l.do(endsAfter(l.T, time.Second), leaving), l.do(l.Context(), staying)
				left := r()
				require.ErrorIs(l, left.err, ErrUnknown)
				require.True(l, left.reply.Ambiguous)
				require.Equal(l, time.Second+ReplyGrace, left.took)
				require.Equal(l, []bool{false}, notified.told())
				require.Equal(l, "mine", s().reply.Value)
				l.calls.Wait()
				synctest.Wait()
				require.Equal(l, []bool{false, test.over}, notified.told())
				require.Zero(l, other.count())
			}, test.late.taking(time.Minute), answer{value: "mine"})
		})
	}
}

func TestLane_SendsAnUnknownScriptInFull(t *testing.T) {
	t.Parallel()
	inLane(t, func(l *laneTest) {
		r := script.Request([]any{"key"}, "token")
		r.Small = true
		first, second := l.do(l.Context(), r), l.do(l.Context(), small("second"))
		require.Equal(l, "in full", first().reply.Value)
		require.Equal(l, int64(7), second().reply.Value)
		require.Equal(l, []int{2, 1}, l.server.record().pipelines)
	}, unknownSHA, carriedOut, answer{value: "in full"})
}

// quits is a client that ends the goroutine that sends a pipeline, as a hook may.
type quits struct{ one }

func (q quits) Pipeline() redis.Pipeliner { return quitting{q.one.Pipeline()} }

type quitting struct{ redis.Pipeliner }

func (quitting) Exec(context.Context) ([]redis.Cmder, error) { runtime.Goexit(); return nil, nil }

func TestLane_APipelineThatEndsItsGoroutineIsUnknown(t *testing.T) {
	t.Parallel()
	s := newServer(carriedOut.taking(roundTrip))
	bubble(t, quits{one{s}}, func(t *testing.T, e *Executor) {
		l := &laneTest{T: t, Executor: e, server: s}
		for range 2 { // the second time another goroutine sends
			for range alonePerServer {
				l.do(t.Context(), small("alone"))
			}
			first, second := l.do(t.Context(), small(1)), l.do(t.Context(), small(2))
			require.ErrorIs(t, first().err, ErrUnknown)
			require.ErrorIs(t, second().err, ErrPanicked)
		}
		l.calls.Wait()
	})
}

// twoNodes is a Cluster's client with two servers, one of which hangs.
type twoNodes struct {
	*server
	nodes [2]*redis.Client
}

func (c *twoNodes) MasterForKey(_ context.Context, key string) (*redis.Client, error) {
	if key == "hangs" {
		return c.nodes[0], nil
	}
	return c.nodes[1], nil
}

func (c *twoNodes) ReloadState(context.Context) {}

func (c *twoNodes) answerOf(cmd redis.Cmder) time.Duration {
	if cmd.(*command).Cmd.Args()[1] == "hangs" {
		return time.Minute
	}
	return roundTrip
}

func (c *twoNodes) Process(_ context.Context, cmd redis.Cmder) error {
	time.Sleep(c.answerOf(cmd))
	carriedOut.apply(cmd.(*command))
	return nil
}

func (c *twoNodes) Pipeline() redis.Pipeliner { return &twoNodesPipe{c: c} }

type twoNodesPipe struct {
	redis.Pipeliner
	c        *twoNodes
	commands []redis.Cmder
}

func (p *twoNodesPipe) Process(_ context.Context, cmd redis.Cmder) error {
	p.commands = append(p.commands, cmd)
	return nil
}

func (p *twoNodesPipe) Exec(context.Context) ([]redis.Cmder, error) {
	var longest time.Duration
	for _, cmd := range p.commands {
		longest = max(longest, p.c.answerOf(cmd))
	}
	time.Sleep(longest)
	for _, cmd := range p.commands {
		carriedOut.apply(cmd.(*command))
	}
	return nil, nil
}

// TestLane_AServerThatHangsCostsTheOthersNothing: on a Cluster each has a lane of its own. On the
// same server, what is under way and hangs costs the others a few milliseconds, once or twice.
func TestLane_AServerThatHangsCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	c := &twoNodes{server: newServer(carriedOut), nodes: [2]*redis.Client{new(redis.Client), new(redis.Client)}}
	bubble(t, c, func(t *testing.T, e *Executor) {
		l := &laneTest{T: t, Executor: e}
		for range 20 {
			l.do(t.Context(), smallOf("hangs"))
		}
		for i := range 50 {
			require.Equal(t, roundTrip, l.do(t.Context(), smallOf(fmt.Sprint("key", i)))().took)
		}
		l.calls.Wait()
	})
	s := newServer(carriedOut.taking(time.Minute), carriedOut.taking(time.Minute), carriedOut.taking(time.Minute), carriedOut)
	bubble(t, one{s}, func(t *testing.T, e *Executor) {
		l := &laneTest{T: t, Executor: e}
		for i := range alonePerServer + 1 {
			l.do(t.Context(), small(i))
		}
		time.Sleep(2 * lanePatience) // the last one is in a pipeline
		var longest, sum time.Duration
		for range 50 {
			took := l.do(t.Context(), small("other"))().took
			longest, sum = max(longest, took), sum+took
		}
		require.LessOrEqual(t, longest, 2*lanePatience)
		require.LessOrEqual(t, sum, 4*lanePatience, "they do not count any more")
		l.calls.Wait()
	})
}
