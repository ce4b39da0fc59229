package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "<nil> <nil> true\nwelcomed: 2\n", out.String())
}

// TestWelcome_IsThereOnce, also for a customer whose task is handled twice, after a crash say; and
// not for one that was rolled back.
func TestWelcome_IsThereOnce(t *testing.T) {
	t.Parallel()
	ctx, r := t.Context(), sluicetest.New(t)
	db, err := open(ctx, filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	defer db.Close()
	queue, err := sluice.NewQueue(r.Client(), "welcome")
	require.NoError(t, err)
	const customers = 50
	for i := range customers {
		require.NoError(t, SignUp(ctx, db, fmt.Sprint("customer-", i)))
	}
	require.Error(t, SignUp(ctx, db, "customer-3"), "it is rolled back, and its task with it")
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	relay := &sluicesql.Relay{DB: db, Outbox: outbox, Queues: []*sluice.Queue{queue}}
	welcome := Welcome(db)
	w := &sluice.Worker{Queue: queue, Handler: func(ctx context.Context, e sluice.Entry) error {
		if err := errors.Join(welcome(ctx, e), welcome(ctx, e)); err != nil { // twice
			return err
		}
		if e.Attempt == 1 {
			return sluice.RetryIn(0, errors.New("it crashed behind the commit"))
		}
		return nil
	}}
	go func() { ended <- relay.Run(running) }()
	go func() { ended <- w.Run(running) }()
	require.Eventually(t, func() bool { return w.Stats().Done == customers }, 30*time.Second, time.Millisecond)
	stop()
	require.NoError(t, errors.Join(<-ended, <-ended))
	var mails, welcomed int
	require.NoError(t, db.QueryRow("SELECT COUNT(*), COUNT(DISTINCT customer) FROM mail").Scan(&mails, &welcomed))
	require.Equal(t, []int{customers, customers}, []int{mails, welcomed})
}
