package shophttp

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestHold_SellsExactlyItsStock kills two processes and Redis in the middle of a sale of some
// thousand requests.
func TestHold_SellsExactlyItsStock(t *testing.T) {
	t.Parallel()
	r := hold(t, Options{Method: ByStock, Requests: 2000, Stock: 60, Faults: true})
	require.NoError(t, r.Check())
	require.Equal(t, 60, r.Rows.Paid)
	require.Zero(t, r.Rows.Twice)
	require.Positive(t, r.Rows.Cancelled, "unpaid units were sold again")
	require.GreaterOrEqual(t, r.Told.Requests, int64(2000))
	require.Positive(t, r.Told.Broken, "the kills hit requests")
	require.Len(t, r.Events, 4, "%v", r.Events)
	require.Less(t, r.Longest(), requestLimit)

	file := filepath.Join(t.TempDir(), "sale.svg")
	require.NoError(t, r.SavePicture(file))
	svg, err := os.Open(file)
	require.NoError(t, err)
	defer svg.Close()
	for d := xml.NewDecoder(svg); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
}

// TestHold_TidiesUpAServerThatStays holds a sale on a server that it has not started: no task and
// no stock of it stays there.
func TestHold_TidiesUpAServerThatStays(t *testing.T) {
	t.Parallel()
	rdb := connect(redistest.Start(t).Addr)
	defer rdb.Close()
	r := hold(t, Options{Method: ByStock, Redis: rdb.Options().Addr, Requests: 200, Stock: 10})
	require.NoError(t, r.Check())
	keys, err := rdb.Keys(t.Context(), "*seckill*").Result()
	require.NoError(t, err)
	for _, key := range keys { // counters may stay
		require.Regexp(t, ":(counts|line|stock)$", key)
		if strings.HasSuffix(key, ":stock") {
			require.NotContains(t, rdb.HGetAll(t.Context(), key).Val(), "total:"+item)
		}
	}
}

// TestHold_CountsWhatItCosts has a sale without kills: only then are commands counted.
func TestHold_CountsWhatItCosts(t *testing.T) {
	t.Parallel()
	r := hold(t, Options{Method: ByStock, Requests: 1000, Stock: 40})
	require.NoError(t, r.Check())
	require.Positive(t, r.Commands)
	require.Positive(t, r.Told.Transactions)
}

func TestHistogram_IsExactToAnEighth(t *testing.T) {
	t.Parallel()
	for d := time.Duration(0); d < time.Hour; d += (d / 3).Truncate(time.Microsecond) + time.Microsecond {
		end := upperEnd(bucketOf(d))
		require.GreaterOrEqual(t, end, d)
		require.LessOrEqual(t, end, d+d/8)
	}
	h := histogram{}
	require.Zero(t, h.percentile(99))
	for ms := range 1000 {
		h[bucketOf(time.Duration(ms)*time.Millisecond)]++
	}
	require.InEpsilon(t, 500*time.Millisecond, h.percentile(50), 0.13)
	require.InEpsilon(t, 990*time.Millisecond, h.percentile(99), 0.13)
	require.InEpsilon(t, 999*time.Millisecond, h.percentile(100), 0.13)
}

func TestParse_RejectsBadFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                  "",
		"-stock 10000 -faults":              "",
		"-method conditional":               "not defined",
		"-stock 0":                          "-stock",
		"-procs 0":                          "-procs",
		"-generators 65":                    "-generators",
		"-pay 1ms":                          "-pay",
		"-requests 0":                       "-requests",
		"-stock 100 -customers 100":         "too few",
		"extra":                             "no arguments",
		"-nosuch":                           "not defined",
		"-requests 1000000 -stock 10 -stay": "",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		if want == "" {
			require.NoError(t, err, args)
		} else {
			require.ErrorContains(t, err, want, args)
		}
	}
}

func TestThin_KeepsTheWorst(t *testing.T) {
	t.Parallel()
	var samples []Sample
	for i := range 1000 {
		samples = append(samples, Sample{At: time.Duration(i+1) * time.Second, Requests: int64(i+1) * 10})
	}
	samples[500].P99 = time.Minute
	thinned := thin(samples)
	require.LessOrEqual(t, len(thinned), mostPoints)
	var worst time.Duration
	for _, s := range thinned {
		require.InDelta(t, 10, s.Rate, 0.001)
		worst = max(worst, s.P99)
	}
	require.Equal(t, time.Minute, worst)
	require.Len(t, thin(samples[:3]), 3)
}
