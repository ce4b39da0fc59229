package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "the API has taken 27 requests, and refused 0\n", out.String())
}

// direct carries requests to an API without a network, which has no part in a bubble.
type direct struct{ *API }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestCaller_NeverAsksTooMuch of an API, in four processes with a backlog of tasks and visitors
// that always want more. Both ways together nearly reach their rate or, of a slow API, have their
// number at a time.
func TestCaller_NeverAsksTooMuch(t *testing.T) {
	for took, perSecond := range map[time.Duration]float64{120 * time.Millisecond: 6 + 2, 500 * time.Millisecond: 2 + 2} {
		t.Run(took.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { callMuch(t, &API{Took: took}, perSecond) })
		})
	}
}

func callMuch(t *testing.T, api *API, perSecond float64) {
	const seconds = 20
	r := sluicetest.New(t)
	ctx, stop := context.WithTimeout(t.Context(), seconds*time.Second)
	defer stop()
	var workers errgroup.Group
	var visitors sync.WaitGroup
	for process := range 4 {
		c, err := start(ctx, r.NewClient(), Caller{Client: &http.Client{Transport: direct{api}}, URL: "http://api"}, &workers)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Locker.Close()) }()
		visitors.Go(func() {
			for ctx.Err() == nil {
				c.Now(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/?id=now", nil))
			}
		})
		for i := range 2 * seconds {
			w, id := httptest.NewRecorder(), fmt.Sprintf("%d-%d", process, i)
			c.Later(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/?id="+id, nil))
			require.Equal(t, http.StatusAccepted, w.Code)
		}
	}
	visitors.Wait()
	require.NoError(t, workers.Wait())
	require.Zero(t, api.Refused())
	require.Greater(t, float64(api.Taken()), perSecond*seconds*0.95)
}
