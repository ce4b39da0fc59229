package distributed

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

var _ = systest.Role("handler", handle)

// handle is the role "handler": a worker with one handler, which prints on each line of its
// standard input whether its lease is valid. Its settings are "ADDR QUEUE LEASE".
func handle(settings string) {
	var addr, name string
	var lease time.Duration
	if _, err := fmt.Sscan(settings, &addr, &name, (*systest.Duration)(&lease)); err != nil {
		panic(err)
	}
	q, err := sluice.NewQueue(redis.NewClient(&redis.Options{Addr: addr}), name)
	if err != nil {
		panic(err)
	}
	w := &sluice.Worker{Queue: q, Concurrency: 1, Lease: lease, Handler: func(ctx context.Context, _ sluice.Entry) error {
		fmt.Println(sluice.LeaseValid(ctx))
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Println(sluice.LeaseValid(ctx))
		}
		return nil
	}}
	_ = w.Run(context.Background())
}

// TestLeaseValid_IsFalseInAStoppedProcess that goes on when another one has the task, at its first
// question: it asks no loop, which may not have noticed.
func TestLeaseValid_IsFalseInAStoppedProcess(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	s := redistest.Redis(t)
	b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
	handler := systest.StartChild(t, "handler", s.Addr, b.Q.Name(), lease)
	var valid bool
	handler.Answer(&valid)
	require.True(t, valid)
	require.NoError(t, handler.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, b.Q.Wait(t.Context()))
	require.Equal(t, "a", b.ClaimOne(time.Minute).ID)
	handler.Tell("what it finds when it goes on") // not before: the signal takes a moment
	require.NoError(t, handler.Process.Signal(syscall.SIGCONT))
	handler.Answer(&valid)
	require.False(t, valid)
}
