package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "sent 4, put off: true, refused for good 1, failed attempts 0\n", out.String())
}

// roundTrip is an API.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestSender_Handle: what each status means.
func TestSender_Handle(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "", 204: "", 429: "status 429: due again in 7s", 503: "status 503: due again in 7s", 500: "status 500", 404: "status 404", 0: "no connection",
	} {
		client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			if status == 0 {
				return nil, errors.New("no connection")
			}
			return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"7"}}, Body: http.NoBody}, nil
		})}
		err := Sender{Client: client, URL: "http://127.0.0.1"}.Handle(context.Background(), sluice.Entry{ID: "a"})
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
		require.Equal(t, status == 404, sluice.IsPermanent(err))
	}
}

func TestRetryAfter_IsWithinBounds(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{"5": 5 * time.Second, "0": time.Second, "-9": time.Second, "999999": time.Hour, "x": 10 * time.Second} {
		require.Equal(t, want, retryAfter(http.Header{"Retry-After": {header}}), header)
	}
}
