package inspect_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// TestReadRate_ReadsWhatRateTextWrites, and other ways to write it.
func TestReadRate_ReadsWhatRateTextWrites(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]sluice.Limits{
		"10/s": {Rate: 10, Per: time.Second}, "100/m": {Rate: 100, Per: time.Minute}, "5/h": {Rate: 5, Per: time.Hour}, "3/d": {Rate: 3, Per: day},
		"10/500ms": {Rate: 10, Per: 500 * time.Millisecond}, "1/ms": {Rate: 1, Per: time.Millisecond}, "1/1.5ms": {Rate: 1, Per: 1500 * time.Microsecond},
		"1/2s": {Rate: 1, Per: 2 * time.Second}, "10/90m": {}, "7/1h30m": {Rate: 7, Per: 90 * time.Minute}, "7/10m": {Rate: 7, Per: 10 * time.Minute},
		"7/10h": {Rate: 7, Per: 10 * time.Hour}, "7/20s": {Rate: 7, Per: 20 * time.Second}, "7/1m30s": {Rate: 7, Per: 90 * time.Second}, "7/7d": {Rate: 7, Per: 7 * day},
		"7/1h0m1s": {Rate: 7, Per: time.Hour + time.Second}, "7/1m0.5s": {Rate: 7, Per: time.Minute + 500*time.Millisecond}, "7/365d": {Rate: 7, Per: 365 * day},
		"7/10h10m": {Rate: 7, Per: 610 * time.Minute}, "1/µs": {Rate: 1, Per: time.Microsecond}, "1000000000/h": {Rate: 1_000_000_000, Per: time.Hour},
	} {
		n, per, err := inspect.ReadRate(text)
		require.NoError(t, err, text)
		if want == (sluice.Limits{}) {
			continue // another way to write it
		}
		require.Equal(t, want, sluice.Limits{Rate: n, Per: per}, text)
		require.Equal(t, text, inspect.RateText(want))
	}
	for text, why := range map[string]string{
		"": "no time", "10": "no time", "10s": "no time", "/s": "whole number", "x/s": "whole number", "0.5/s": "whole number", "1,000/s": "whole number", "1e3/s": "whole number",
		"0/s": "1 to a billion", "-1/s": "1 to a billion", "1000000001/h": "1 to a billion", "99999999999999999999/s": "whole number",
		"10/": "a time that is none", "10/x": "a time that is none", "10/0.5d": "a time that is none", "10/-1s": "a time that is none", "10/s/m": "a time that is none",
		"10/5": "a time that is none", "10/ s": "a time that is none", "10/70000d": "a time that is none", "10/0s": "1us to 365d", "10/366d": "1us to 365d", "1/ns": "1us to 365d", "10/us": "microsecond",
	} {
		_, _, err := inspect.ReadRate(text)
		require.ErrorIs(t, err, sluice.ErrInvalid, text)
		require.ErrorContains(t, err, why, text)
		require.ErrorContains(t, err, "10/s", text)
	}
}

func TestReadLimits_SaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		running, rate, burst, perGroup string
		want                           sluice.Limits
		why                            string
	}{
		{running: "3", want: sluice.Limits{Running: 3}},
		{rate: "10/m", want: sluice.Limits{Rate: 10, Per: time.Minute, Burst: 1}},
		{running: "1000000000", rate: "10/s", burst: "5", want: sluice.Limits{Running: 1_000_000_000, Rate: 10, Per: time.Second, Burst: 5}},
		{perGroup: "1000", want: sluice.Limits{PerGroup: 1000}},
		{rate: "10/s", perGroup: "4", want: sluice.Limits{Rate: 10, Per: time.Second, Burst: 1, PerGroup: 4}},
		{perGroup: "1001", why: `per group is 1,000 at most, not "1001"`},
		{perGroup: "0", why: "per group is"},
		{why: "limit nothing"},
		{running: "0", why: `running is a whole number from 1 to a billion, not "0"`},
		{running: "-1", why: "running is"},
		{running: "1000000001", why: "running is"},
		{running: "\x1b[m", why: `not "\x1b[m"`},
		{rate: "1/s", burst: "x", why: "burst is"},
		{running: "1", burst: "5", why: "there is none"},
		{running: "1", rate: "x", why: "no time"},
	} {
		got, err := inspect.ReadLimits(c.running, c.rate, c.burst, c.perGroup)
		require.Equal(t, c.want, got)
		if c.why == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, sluice.ErrInvalid)
		require.ErrorContains(t, err, c.why)
	}
}

func TestLimitsNote_SaysWhetherAQueueIsAtItsLimit(t *testing.T) {
	rate := sluice.Limits{Rate: 10, Per: time.Second, Burst: 5}
	both := rate
	both.Running = 3
	for want, s := range map[string]sluice.Stats{
		"":                                 {Leased: 3},
		"limits: 10/s, burst 5":            {Leased: 3, Limits: rate},
		"limits: 3 running, 10/s, burst 5": {Leased: 2, Limits: both},
		"limits: 3 running":                {Limits: sluice.Limits{Running: 3}},
		"at its limit: 3 of 3 running":     {Leased: 3, Limits: sluice.Limits{Running: 3}},
		"at its limit: 4 of 3 running; 10/s, burst 5": {Leased: 4, Limits: both},
		"limits: 4 per group":                         {Limits: sluice.Limits{PerGroup: 4}},
		"at its limit: 3 of 3 running; 4 per group":   {Leased: 3, Limits: sluice.Limits{Running: 3, PerGroup: 4}},
	} {
		require.Equal(t, want, inspect.LimitsNote(s))
		require.Equal(t, want != "" && want[0] == 'a', inspect.AtLimit(s))
	}
}
