package virtualtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestHours_OfTasksUnderFaults: whatever strikes the processes, every task that Redis has
// taken is done, none early, and none by two handlers at once whose contexts are alive.
func TestHours_OfTasksUnderFaults(t *testing.T) {
	tasksUnderFaults(t, 6*time.Minute)
}

func tasksUnderFaults(t *testing.T, length time.Duration) {
	t.Helper()
	hoursOfFaults(t, 3, length, func(h *hours) {
		w := &work{h: h, due: map[string]time.Time{}, doing: map[string]context.Context{}, done: map[string]int{}}
		var all sync.WaitGroup
		ctx, stop := context.WithCancel(h.Context())
		defer stop()
		for _, rdb := range h.processes {
			q, err := sluice.NewQueue(rdb, "q", sluice.WithMaxAttempts(-1))
			require.NoError(h, err)
			all.Go(func() {
				worker := &sluice.Worker{Queue: q, Concurrency: 5, Lease: 3 * time.Second, Backoff: func(int, error) time.Duration { return time.Second }, Handler: w.handle}
				require.NoError(h, worker.Run(ctx))
			})
			all.Go(func() {
				for i := 0; time.Now().Before(h.end); i++ {
					w.enqueue(q, fmt.Sprintf("%p %d", q, i))
					time.Sleep(rand.N(10 * time.Second))
				}
			})
		}
		h.strike()
		time.Sleep(2 * time.Minute) // leases, pauses and delays
		stop()
		all.Wait()
		size, err := h.clean.ZCard(h.Context(), "Queue:q").Result()
		require.NoError(h, err)
		require.Zero(h, size)
		require.Zero(h, h.clean.Exists(h.Context(), "{Queue:q}:tasks", "{Queue:q}:state").Val())
		again := 0
		for _, id := range w.taken {
			require.Positive(h, w.done[id], "a task was lost")
			again += w.done[id] - 1
		}
		h.Logf("%d tasks, and %d whose outcome is unknown; %d failed, %d leases lost, %d done again; struck by %v",
			len(w.taken), w.unknown, w.failed, w.lost, again, h.struck)
		require.Greater(h, len(w.taken), int(6*h.length.Minutes()))
		if h.long() {
			require.Positive(h, w.lost)
		}
		time.Sleep(time.Minute) // what lingers
	})
}

// work is what is known of tasks.
type work struct {
	h                     *hours
	mu                    sync.Mutex
	due                   map[string]time.Time // at the earliest
	taken                 []string             // those that Redis has acknowledged
	doing                 map[string]context.Context
	done                  map[string]int
	unknown, failed, lost int
}

func (w *work) enqueue(q *sluice.Queue, id string) {
	task := sluice.Task{ID: id, Payload: []byte("p"), Delay: rand.N(time.Minute)}
	due := time.Now().Add(task.Delay)
	w.mu.Lock()
	w.due[id] = due
	w.mu.Unlock()
	_, err := q.Enqueue(w.h.Context(), task)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.unknown++
		return
	}
	w.taken = append(w.taken, id)
}

// begin checks that a task may be handed out now.
func (w *work) begin(ctx context.Context, id string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if early := w.due[id].Sub(now); early > 2*time.Microsecond { // what the server counts, and doubles round
		w.h.Errorf("handed out %v early", early)
	}
	if before := w.doing[id]; before != nil && before.Err() == nil {
		w.h.Error("handed out twice at once")
	}
	w.doing[id] = ctx
}

func (w *work) handle(ctx context.Context, e sluice.Entry) error {
	w.begin(ctx, e.ID)
	sleep := rand.N(5 * time.Second)
	if rand.IntN(20) == 0 {
		sleep *= 10
	}
	select {
	case <-time.After(sleep):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		if !errors.Is(context.Cause(ctx), sluice.ErrLost) {
			w.h.Error(context.Cause(ctx))
		}
		w.lost++
		return nil
	}
	if rand.IntN(10) == 0 {
		w.failed++
		return errors.New("again")
	}
	w.done[e.ID]++
	return nil
}
