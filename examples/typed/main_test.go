package main

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "welcome-7: \"Welcome\" to ann@example.com\n", out.String())
}

// TestTasks_BuriesWhatIsNoPayload: and its reason does not show it.
func TestTasks_BuriesWhatIsNoPayload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		queue, err := sluice.NewQueue(r.Client(), "mail", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		mails := Tasks[Mail]{queue}
		_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "bad", Payload: []byte("secret")})
		require.NoError(t, err)
		outcome, err := mails.Enqueue(t.Context(), "good", Mail{To: "ann"}, time.Hour)
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeAdded, outcome)
		_, err = Tasks[func()]{queue}.Enqueue(t.Context(), "x", nil, 0)
		require.Error(t, err)

		var got []Mail
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- (&sluice.Worker{Queue: queue, Handler: mails.Handler(func(_ context.Context, _ sluice.Entry, m Mail) error {
				got = append(got, m)
				return nil
			})}).Run(ctx)
		}()
		r.Advance(time.Minute)
		require.Empty(t, got)
		require.NotContains(t, r.RequireDead("mail", "bad").Reason, "secret")
		r.Advance(time.Hour)
		require.Equal(t, []Mail{{To: "ann"}}, got)
		stop()
		require.NoError(t, <-ended)
	})
}
