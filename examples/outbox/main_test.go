package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "<nil> <nil> true\nrelayed: 2\n", out.String())
}

// TestRelay_LosesNothing: what was relayed before a crash is relayed again, and is in the queue
// once.
func TestRelay_LosesNothing(t *testing.T) {
	t.Parallel()
	ctx, r := t.Context(), sluicetest.New(t)
	db, err := open(ctx, schema)
	require.NoError(t, err)
	defer db.Close()
	queue, err := sluice.NewQueue(r.Client(), "welcome", sluice.WithDuplicates(sluice.DuplicatesKeep))
	require.NoError(t, err)
	for i := range 150 {
		require.NoError(t, SignUp(ctx, db, fmt.Sprint("customer-", i)))
	}
	require.Error(t, SignUp(ctx, db, "customer-3"), "it is rolled back, and its task with it")
	_, err = queue.Enqueue(ctx, sluice.Task{ID: "outbox-1", Payload: []byte("customer-0")}) // by a relay that crashed then
	require.NoError(t, err)

	locker, err := sluice.NewLocker(r.Client())
	require.NoError(t, err)
	defer locker.Close()
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&Relay{db, queue}).Run(running, locker, 10*time.Millisecond)
	}()
	require.Eventually(t, func() bool {
		var left int
		return db.QueryRow("SELECT count(*) FROM outbox").Scan(&left) == nil && left == 0
	}, 20*time.Second, time.Millisecond)
	stop()
	<-ended
	due := r.Due("welcome")
	require.Len(t, due, 150)
	for _, e := range due {
		var id int
		_, err := fmt.Sscanf(e.ID, "outbox-%d", &id)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("customer-", id-1), string(e.Payload))
	}
}
