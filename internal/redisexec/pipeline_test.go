package redisexec

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// outcomes are those of results.
func outcomes(results []Result) []Outcome {
	all := make([]Outcome, len(results))
	for i, r := range results {
		all[i] = r.Outcome
	}
	return all
}

func TestPipeline_SendsEachRequestOnceInOrder(t *testing.T) {
	t.Parallel()
	s := newServer(carriedOut, refused, unavailable, noReply, unwritten, answer{value: "last"})
	bubble(t, s, func(t *testing.T, e *Executor) {
		results := e.Pipeline(t.Context(), []Request{
			plain(Never), plain(Idempotent), plain(Idempotent), plain(Idempotent), plain(ReadOnly), plain(Never),
		})
		require.Equal(t, []Outcome{Done, Rejected, Unavailable, Unknown, NotSent, Done}, outcomes(results))
		require.Equal(t, int64(7), results[0].Value)
		require.Equal(t, "last", results[5].Value)
		require.ErrorIs(t, results[1].Err, errRefused)
		require.Equal(t, []int{6}, s.record().pipelines, "nothing is tried again")
	})
	require.Empty(t, New(newServer(carriedOut)).SendAll(t.Context(), nil))
}

// TestPipeline_SendsAnUnknownScriptInFullOnce: behind it the others go by the digest again. A plain
// command cannot be one.
func TestPipeline_SendsAnUnknownScriptInFullOnce(t *testing.T) {
	t.Parallel()
	s := newServer(carriedOut, unknownSHA, unknownSHA, refused, unknownSHA, unknownSHA,
		answer{value: "second"}, answer{value: "fifth"}, answer{value: "sixth"})
	known := script.Request([]any{"key"}, "other")
	unknown := script.Request([]any{"key"}, "token")
	second := NewScript("return 2", "digest 2", Idempotent).Request([]any{"key"}, "token")
	bubble(t, s, func(t *testing.T, e *Executor) {
		results := e.SendAll(t.Context(), []Request{known, unknown, plain(Never), known, unknown, second})
		require.Equal(t, []int{6, 3}, s.record().pipelines)
		require.Equal(t, [][]any{inFull, byHash, {"eval", "return 2", 1, "key", "token"}}, s.record().commands[6:])
		require.Equal(t, []Outcome{Done, Done, Rejected, Rejected, Done, Done}, outcomes(results))
		require.Equal(t, "second", results[1].Value)
		require.Equal(t, "fifth", results[4].Value)
		require.Equal(t, "sixth", results[5].Value)
		require.ErrorIs(t, results[2].Err, errNoScript)
	})
}

// TestPipeline_SendsMoreInFullIfTheFirstDoesNotMakeTheScriptKnown: it was denied, or it went to
// another server.
func TestPipeline_SendsMoreInFullIfTheFirstDoesNotMakeTheScriptKnown(t *testing.T) {
	t.Parallel()
	const n = 100
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = script.Request([]any{"key"}, "token")
	}
	for name, test := range map[string]struct {
		client    func(s *server) redis.UniversalClient
		pipelines []int
	}{
		"one server": {func(s *server) redis.UniversalClient { return s }, []int{n, n, n - 1, n - 1 - moreInFull}},
		"a Cluster":  {func(s *server) redis.UniversalClient { return &nodes{server: s, n: 4} }, []int{n, n, n - 4}},
	} {
		s := newServer(unknownSHA) // whatever it is sent
		bubble(t, test.client(s), func(t *testing.T, e *Executor) {
			require.Equal(t, slices.Repeat([]Outcome{Rejected}, n), outcomes(e.SendAll(t.Context(), requests)), name)
			require.Equal(t, test.pipelines, s.record().pipelines, name)
		})
	}
}

// nodes is a client of a Cluster of n servers, whose keys go to one after the other.
type nodes struct {
	*server
	n, asked int
	clients  [8]redis.Client
}

func (c *nodes) MasterForKey(context.Context, string) (*redis.Client, error) {
	c.asked++
	return &c.clients[c.asked%c.n], nil
}

// forgetful is a server that knows no script before it has carried one out. It takes a millisecond.
type forgetful struct {
	*server
	first  answer       // to the first script in full
	inFull atomic.Int64 // how many it was sent
	known  atomic.Bool
}

func (s *forgetful) Process(ctx context.Context, cmd redis.Cmder) error {
	c := cmd.(*command)
	a, full := carriedOut, c.Args()[0] == "eval"
	switch {
	case full && s.inFull.Add(1) == 1:
		a = s.first
	case !full && !s.known.Load():
		a = unknownSHA
	}
	time.Sleep(max(a.after, time.Millisecond))
	if a.err == nil {
		s.known.Store(true)
	}
	a.apply(c)
	return a.err
}

// TestRun_OfManyWithAnUnknownScriptOneSendsItInFull: the others wait for it, for a moment.
func TestRun_OfManyWithAnUnknownScriptOneSendsItInFull(t *testing.T) {
	t.Parallel()
	const n = 100
	for name, test := range map[string]struct {
		first  answer // to the first script in full
		wants  int64  // in full
		within time.Duration
	}{
		"answered": {carriedOut, 1, 3 * time.Millisecond},
		"denied":   {refused, n, 4 * time.Millisecond},
		"hangs":    {carriedOut.taking(time.Hour), n, loadPatience + 3*time.Millisecond},
	} {
		s := &forgetful{server: newServer(carriedOut), first: test.first}
		bubble(t, s, func(t *testing.T, e *Executor) {
			done := make(chan Outcome, n)
			start := time.Now()
			for range n {
				e.Go(func() { done <- e.Once(t.Context(), script.Request([]any{"key"}, "token")).Outcome })
			}
			for range n - 1 {
				require.NotEqual(t, Unknown, <-done, name)
			}
			require.Equal(t, test.within, time.Since(start), name)
			<-done
			require.Equal(t, test.wants, s.inFull.Load(), name)
		})
	}
}

func TestPipeline_ReturnsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	s := newServer(carriedOut.taking(time.Minute))
	synctest.Test(t, func(t *testing.T) {
		e, start := New(s), time.Now()
		results := e.Pipeline(endsAfter(t, time.Second), []Request{plain(Never), plain(Never)})
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, []Outcome{Abandoned, Abandoned}, outcomes(results))
		for _, r := range results {
			require.ErrorIs(t, r.Err, context.DeadlineExceeded)
		}
		require.Equal(t, []error{nil, nil}, s.record().contexts, "the client sees a context that goes on")
		e.Close(t.Context())
		require.Equal(t, time.Minute, time.Since(start), "the pipeline goes on")
	})
}

func TestPipeline_ThatEndsItsGoroutineIsUnknown(t *testing.T) {
	t.Parallel()
	bubble(t, quits{one{newServer(carriedOut)}}, func(t *testing.T, e *Executor) {
		results := e.Pipeline(t.Context(), []Request{plain(Never), plain(Never)})
		require.Equal(t, []Outcome{Unknown, Unknown}, outcomes(results))
		require.ErrorIs(t, results[1].Err, ErrPanicked)
	})
}

func TestPipeline_SendsNothingWhenItsContextHasEnded(t *testing.T) {
	t.Parallel()
	s := newServer(carriedOut)
	bubble(t, s, func(t *testing.T, e *Executor) {
		results := e.Pipeline(endedContext, []Request{plain(Never), plain(Never)})
		require.Equal(t, []Outcome{Abandoned, Abandoned}, outcomes(results))
		require.ErrorIs(t, results[1].Err, context.Canceled)
		require.Empty(t, s.record().commands)
	})
}

// goroutine returns the number of the goroutine that calls it.
func goroutine() string {
	stack := make([]byte, 64)
	return string(bytes.Fields(stack[:runtime.Stack(stack, false)])[1])
}

// job is a Job that notes its goroutine.
type job struct {
	takes time.Duration
	ran   chan string // cap 1
}

func newJob(takes time.Duration) *job { return &job{takes: takes, ran: make(chan string, 1)} }

func (j *job) Run() {
	time.Sleep(j.takes)
	j.ran <- goroutine()
}

func TestSender_RunsAnotherJobWhileItIsIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := New(newServer(carriedOut))
		run := func(takes time.Duration) *job {
			j := newJob(takes)
			e.Start(j)
			return j
		}
		first := <-run(0).ran
		time.Sleep(senderIdle - time.Millisecond)
		long := run(time.Second)
		synctest.Wait()
		other := <-run(0).ran
		require.NotEqual(t, first, other, "a sender that is busy takes no job")
		require.Equal(t, first, <-long.ran)

		start := time.Now()
		e.senders.Wait(t.Context())
		require.Equal(t, senderIdle, time.Since(start), "it ends when it has been idle for so long")
		require.NotEqual(t, first, <-run(0).ran)
		e.Close(t.Context())
	})
}

func TestSender_EndsWithTheExecutor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := New(newServer(carriedOut))
		e.Start(newJob(0))
		e.Start(newJob(time.Second))
		synctest.Wait()
		start := time.Now()
		e.Close(t.Context())
		require.Equal(t, time.Second, time.Since(start), "when its job is done, and without being idle for a while")
	})
}

// cluster is a server that is a Cluster's client, too.
type cluster struct {
	*server
	node    *redis.Client
	err     error
	asked   []string // the keys whose node was asked for
	reloads int
	usable  bool // a context that was passed had not ended
}

func (c *cluster) MasterForKey(ctx context.Context, key string) (*redis.Client, error) {
	c.asked = append(c.asked, key)
	c.usable = c.usable || ctx.Err() == nil
	return c.node, c.err
}

func (c *cluster) ReloadState(context.Context) { c.reloads++ }

func TestExecutor_NodeOfIsWhatTheClientKnows(t *testing.T) {
	t.Parallel()
	require.Nil(t, New(newServer(carriedOut)).NodeOf("key"), "of another client")
	c := &cluster{node: new(redis.Client)}
	require.Same(t, c.node, New(c).NodeOf("key"))
	New(c).NodeOf(1)
	require.Equal(t, []string{"key", ""}, c.asked)
	require.False(t, c.usable, "the network is not used")
	c.err = errors.New("no such node")
	require.Nil(t, New(c).NodeOf("key"))
}

// TestExecutor_RefreshesTheTopologyWhenNothingWasCarriedOut, so far as is known: a node that is dead
// never says where its slots have gone.
func TestExecutor_RefreshesTheTopologyWhenNothingWasCarriedOut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer  answer
		reloads int
	}{
		"done": {carriedOut, 0}, "rejected": {refused, 0}, "unavailable": {unavailable, 1},
		"unknown": {noReply, 1}, "not sent": {unwritten, 1},
	} {
		c := &cluster{server: newServer(test.answer, carriedOut)}
		e := New(c)
		_, _ = e.Run(context.Background(), plain(Idempotent))
		require.Equal(t, test.reloads, c.reloads, name)

		c.server = newServer(test.answer, carriedOut)
		e.SendAll(t.Context(), []Request{plain(Never), plain(Never)})
		require.Equal(t, 2*test.reloads, c.reloads, name)
	}
}

// TestRun_LeavesOutTheSecondKeyOfASplitSlot: it is spare, and each of two servers has some of the
// others.
func TestRun_LeavesOutTheSecondKeyOfASplitSlot(t *testing.T) {
	t.Parallel()
	split := answer{err: serverError("TRYAGAIN Multiple keys request during rehashing of slot")}
	for name, keys := range map[string][2][]any{
		"two":   {{"lock", "line"}, {"lock"}},
		"three": {{"lock", "line", "fence"}, {"lock", "fence", "fence"}},
	} {
		request := script.Request(keys[0], "token")
		args, fewer := slices.Clone(request.Args), script.Request(keys[1], "token").Args
		request.SecondIsSpare = true

		s := newServer(split, carriedOut, split, split, carriedOut)
		bubble(t, s, func(t *testing.T, e *Executor) {
			for range 2 {
				reply, err := e.Run(t.Context(), request)
				require.NoError(t, err, name)
				require.Equal(t, int64(7), reply.Value, name)
			}
			require.Equal(t, [][]any{args, fewer, args, fewer, args}, s.record().commands, name)
			require.Equal(t, args, request.Args, name)
		})

		s = newServer(carriedOut, split, split, carriedOut)
		bubble(t, s, func(t *testing.T, e *Executor) {
			needed := script.Request(keys[0], "token")
			results := e.SendAll(t.Context(), []Request{request, request, needed})
			require.Equal(t, []Outcome{Done, Done, Unavailable}, outcomes(results), name)
			require.Equal(t, [][]any{args, args, args, fewer}, s.record().commands, name)
		})
	}
}
