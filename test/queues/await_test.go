package queues

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

var remembers = sluice.WithRetention(time.Hour)

// TestAwait_HowATaskEnds: done with a result, dead with a reason, discarded, cancelled, not there.
func TestAwait_HowATaskEnds(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, id := range []string{"done", "plain", "dead", "discarded", "canceled"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Delay: 100 * time.Millisecond, Payload: []byte("p")})
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: time.Hour})
		w := &sluice.Worker{Queue: b.On(b.RDB, remembers), Handler: func(ctx context.Context, e sluice.Entry) error {
			switch e.ID {
			case "done":
				return sluice.RecordResult(ctx, []byte("result"))
			case "dead":
				return sluice.Permanent(errors.New("declined"))
			case "discarded":
				return sluice.Discard(errors.New("unpaid"))
			case "canceled":
				_, err := b.Q.Cancel(context.WithoutCancel(ctx), e.ID)
				return err
			}
			return nil
		}}
		stop := systest.StartWorker(b.T, w)
		want := map[string]sluice.TaskInfo{
			"done":  {State: sluice.StateDone, Result: []byte("result")},
			"plain": {State: sluice.StateDone},
			"dead":  {State: sluice.StateDead, Reason: "declined"},
			// not there any more
			"discarded": {}, "canceled": {}, "never there": {},
		}
		var all sync.WaitGroup
		for id, want := range want {
			for range 2 { // of one task, too
				all.Go(func() {
					got, err := b.Q.Await(b.Context(), id)
					if want.State == sluice.StateAbsent {
						require.ErrorIs(b, err, sluice.ErrNotFound, id)
						return
					}
					require.NoError(b, err, id)
					require.Equal(b, want.State, got.State, id)
					require.Equal(b, want.Reason, got.Reason, id)
					require.Equal(b, want.Result, got.Result, id)
					require.Equal(b, id, got.ID)
					if want.State == sluice.StateDead {
						require.Equal(b, "p", string(got.Payload))
					}
				})
			}
		}
		all.Wait()
		require.NoError(b, stop())
		ctx, cancel := context.WithTimeout(b.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := b.Q.Await(ctx, "later")
		require.ErrorIs(b, err, context.DeadlineExceeded)
		_, err = b.On(b.RDB).Await(b.Context(), "later")
		require.ErrorIs(b, err, sluice.ErrInvalid)
		_, err = b.Q.Await(b.Context(), "")
		require.ErrorIs(b, err, sluice.ErrInvalid)
	}, remembers)
}

// TestAwait_PollsTogether: five hundred calls cost two scripts a look, first each 20ms, then each
// half second; no call, none. A Worker's hint costs no wait.
func TestAwait_PollsTogether(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		var sent atomic.Int64
		rdb.AddHook(counting{&sent})
		q, err := sluice.NewQueue(rdb, "q", remembers)
		require.NoError(t, err)
		const n = 500
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: time.Hour}
		}
		_, err = q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range tasks {
			all.Go(func() {
				_, err := q.Await(ctx, fmt.Sprint(i))
				require.ErrorIs(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		looks := func(d time.Duration) int64 {
			before := sent.Load()
			time.Sleep(d)
			return sent.Load() - before
		}
		require.InDelta(t, 2*20, looks(400*time.Millisecond), 6) // each 20ms
		time.Sleep(20 * time.Second)
		require.InDelta(t, 2*20, looks(10*time.Second), 6) // each 500ms
		cancel()
		all.Wait()
		require.Zero(t, looks(10*time.Second))
	})
}

// TestAwait_IsSoon: most of those that end within a second are seen within a twentieth of their
// wait, by a process that has no Worker of its own; at once by one that has.
func TestAwait_IsSoon(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		worker, err := sluice.NewQueue(rdb, "q", remembers)
		require.NoError(t, err)
		w := &sluice.Worker{Queue: worker, Concurrency: 100, Handler: func(_ context.Context, e sluice.Entry) error {
			time.Sleep(time.Duration(len(e.Payload)) * 10 * time.Millisecond)
			return nil
		}}
		stop := systest.StartWorker(t, w)
		for name, q := range map[string]*sluice.Queue{"elsewhere": nil, "here": worker} {
			if q == nil {
				q, err = sluice.NewQueue(rdb, "q", remembers)
				require.NoError(t, err)
			}
			var mu sync.Mutex
			var late []time.Duration
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					id, began := fmt.Sprint(name, i), time.Now()
					_, err := q.Enqueue(t.Context(), sluice.Task{ID: id, Payload: make([]byte, i)})
					require.NoError(t, err)
					_, err = q.Await(t.Context(), id)
					require.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					late = append(late, time.Since(began)-time.Duration(i)*10*time.Millisecond)
				})
			}
			all.Wait()
			slices.Sort(late)
			want := map[string]time.Duration{"elsewhere": 60 * time.Millisecond, "here": time.Millisecond}[name]
			require.LessOrEqual(t, late[98], want, name)
		}
		require.NoError(t, stop())
	})
}

// TestAwait_OutlivesAServerThatDoesNotAnswer: it goes on, and its error says what it was that kept
// it.
func TestAwait_OutlivesAServerThatDoesNotAnswer(t *testing.T) {
	redistest.NotShort(t)
	s := redistest.Start(t)
	q, err := sluice.NewQueue(s.Client(t), "q", remembers)
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	found := make(chan sluice.TaskInfo, 1)
	go func() {
		i, _ := q.Await(t.Context(), "a")
		found <- i
	}()
	_, err = q.Stats(t.Context())
	require.NoError(t, err)
	s.Down()
	for wait := time.Second; !errors.Is(err, sluice.ErrUnavailable); wait *= 2 { // the client's tries take some
		require.Less(t, wait, 20*time.Second, "%v", err)
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err = q.Await(ctx, "b")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	s.Up(t) // empty
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	if err == nil {
		es, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Dequeue(t.Context(), es...))
	}
	<-found // done, or gone with the server's data
}

// TestAwait_ReturnsNoEarlierLife: what was done before, and is enqueued again and discarded, is gone.
func TestAwait_ReturnsNoEarlierLife(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require.NoError(b, b.Q.Dequeue(b.Context(), b.ClaimOne(time.Minute)))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: 200 * time.Millisecond})
		stop := systest.StartWorker(b.T, &sluice.Worker{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error {
			return sluice.Discard(errors.New("not wanted"))
		}})
		i, err := b.Q.Await(b.Context(), "a")
		require.NoError(b, stop())
		require.ErrorIs(b, err, sluice.ErrNotFound, i.State.String())
	}, remembers)
}

// heldLook holds up the answer of the next pipeline.
type heldLook struct {
	armed, held, release chan struct{}
	once                 sync.Once
}

func (h *heldLook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *heldLook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *heldLook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		select {
		case <-h.armed:
			h.once.Do(func() { close(h.held); <-h.release })
		default:
		}
		return err
	}
}

// TestAwait_TakesNoAnswerFromBeforeTheCall: another caller's look is on its way, and knows nothing of
// the task that this caller has enqueued since.
func TestAwait_TakesNoAnswerFromBeforeTheCall(t *testing.T) {
	redistest.NotShort(t)
	rdb := redistest.Start(t).Client(t)
	h := &heldLook{armed: make(chan struct{}), held: make(chan struct{}), release: make(chan struct{})}
	rdb.AddHook(h)
	q, err := sluice.NewQueue(rdb, "q", remembers)
	require.NoError(t, err)
	_, err = q.Await(t.Context(), "warm")
	require.ErrorIs(t, err, sluice.ErrNotFound)
	close(h.armed)
	other := make(chan error, 1)
	go func() {
		_, err := q.Await(t.Context(), "a")
		other <- err
	}()
	<-h.held
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	mine := make(chan error, 1)
	go func() {
		_, err := q.Await(t.Context(), "a")
		mine <- err
	}()
	time.Sleep(50 * time.Millisecond) // it has joined the other one: were it later, this showed nothing
	close(h.release)
	require.ErrorIs(t, <-other, sluice.ErrNotFound)
	es, err := q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.NoError(t, q.Dequeue(t.Context(), es...))
	require.NoError(t, <-mine)
}

// TestAwait_SharesNoMemory with others that wait for the same task.
func TestAwait_SharesNoMemory(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: 100 * time.Millisecond})
		var all sync.WaitGroup
		got := make([]sluice.TaskInfo, 2)
		for i := range got {
			all.Go(func() { got[i], _ = b.Q.Await(b.Context(), "a") })
		}
		stop := systest.StartWorker(b.T, &sluice.Worker{Queue: b.Q, Handler: func(ctx context.Context, _ sluice.Entry) error {
			return sluice.RecordResult(ctx, []byte("result"))
		}})
		all.Wait()
		require.NoError(b, stop())
		got[0].Result[0] = 'X'
		require.Equal(b, "result", string(got[1].Result))
	}, remembers)
}

// TestAwait_OneThatIsNotTheLibrarysEndsNoOther wait, although all are looked at by one script.
func TestAwait_OneThatIsNotTheLibrarysEndsNoOther(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ids := []string{"bad"}
		for i := range 20 {
			ids = append(ids, fmt.Sprint("good", i))
		}
		for _, id := range ids {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
		}
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		var others sync.WaitGroup
		for _, id := range ids[1:] {
			others.Go(func() {
				_, err := b.Q.Await(ctx, id)
				require.ErrorIs(b, err, context.Canceled, id)
			})
		}
		ended := make(chan error, 1)
		go func() { // it ends with the test
			_, err := b.Q.Await(b.Context(), "bad")
			ended <- err
		}()
		time.Sleep(50 * time.Millisecond) // looks at all have begun
		require.NoError(b, b.RDB.HSet(b.Context(), "{"+b.Key+"}:state", "bad", "*0,3:abc::").Err())
		require.NoError(b, b.RDB.ZAdd(b.Context(), b.Key, redis.Z{Score: 1, Member: "bad"}).Err()) // looks see it anew
		require.ErrorIs(b, <-ended, sluice.ErrCorrupt)
		cancel()
		others.Wait()
	}, remembers)
}
