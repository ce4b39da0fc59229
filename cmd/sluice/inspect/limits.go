package inspect

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

const day = 24 * time.Hour

// mostLimit is the largest number of sluice.Limits, mostPerGroup that of its PerGroup, and
// longestRate the longest time for which a rate may be written.
const (
	mostLimit    = 1_000_000_000
	mostPerGroup = 1000
	longestRate  = 365 * day
)

// ReadLimits reads limits: how many run, a rate for ReadRate, its burst, and how many of a group are
// in play. An empty text is none. The error is sluice.ErrInvalid, also if all are empty.
func ReadLimits(running, rate, burst, perGroup string) (l sluice.Limits, err error) {
	if running+rate+burst+perGroup == "" {
		return l, fmt.Errorf("%w: limits that limit nothing", sluice.ErrInvalid)
	}
	if l.Running, err = readLimit("running", running); err != nil {
		return sluice.Limits{}, err
	}
	if l.Burst, err = readLimit("burst", burst); err != nil {
		return sluice.Limits{}, err
	}
	if l.PerGroup, err = readLimit("per group", perGroup); err != nil {
		return sluice.Limits{}, err
	}
	if l.PerGroup > mostPerGroup {
		return sluice.Limits{}, fmt.Errorf("%w: per group is %s at most, not %q", sluice.ErrInvalid, Count(mostPerGroup), perGroup)
	}
	if rate == "" {
		if l.Burst > 0 {
			return sluice.Limits{}, fmt.Errorf("%w: a burst is that of a rate, and there is none", sluice.ErrInvalid)
		}
		return l, nil
	}
	l.Burst = max(l.Burst, 1)
	if l.Rate, l.Per, err = ReadRate(rate); err != nil {
		return sluice.Limits{}, err
	}
	return l, nil
}

// readLimit reads a number; 0 for an empty text.
func readLimit(what, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if text != "" && (err != nil || n < 1 || n > mostLimit) {
		return 0, fmt.Errorf("%w: %s is a whole number from 1 to a billion, not %q", sluice.ErrInvalid, what, text)
	}
	return n, nil
}

// ReadRate reads a rate as RateText writes it: how many tasks in which time. The time is a unit, or
// a length of time. The error is sluice.ErrInvalid.
func ReadRate(text string) (n int, per time.Duration, err error) {
	wrong := func(why string) (int, time.Duration, error) {
		return 0, 0, fmt.Errorf("%w: rate %q %s: write 10/s, 100/m, 5/h, 3/d or 10/500ms", sluice.ErrInvalid, text, why)
	}
	tasks, span, found := strings.Cut(text, "/")
	if !found {
		return wrong("has no time")
	}
	n, err = strconv.Atoi(tasks)
	switch {
	case err != nil:
		return wrong("does not begin with a whole number")
	case n < 1 || n > mostLimit:
		return wrong("is not for 1 to a billion tasks")
	}
	per, ok := readSpan(span)
	switch {
	case !ok:
		return wrong("has a time that is none")
	case per < time.Microsecond || per > longestRate:
		return wrong("is not for a time from 1us to 365d")
	case int64(n) > per.Microseconds():
		return wrong("is more than one task in a microsecond")
	}
	return n, per, nil
}

// readSpan reads s, m, h, d and so on, and lengths of time: 500ms, 1h30m, 7d.
func readSpan(text string) (time.Duration, bool) {
	if text != "" && (text[0] < '0' || text[0] > '9') {
		text = "1" + text
	}
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * day, err == nil
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// RateText writes the rate of limits: 10/s, 10/500ms; "" if they have none.
func RateText(l sluice.Limits) string {
	if l.Rate == 0 {
		return ""
	}
	per := l.Per.String()
	if l.Per%day == 0 {
		per = fmt.Sprintf("%dd", l.Per/day)
	}
	for _, zero := range []string{"0s", "0m"} { // 1h0m0s
		if whole := strings.TrimSuffix(per, zero); strings.HasSuffix(whole, "m") || strings.HasSuffix(whole, "h") {
			per = whole
		}
	}
	if unit := per[1:]; per[0] == '1' && !strings.ContainsAny(unit, "0123456789.") {
		per = unit // 10/s, not 10/1s
	}
	return fmt.Sprintf("%d/%s", l.Rate, per)
}

// LimitsText says what limits are: "3 running, 10/s, burst 5, 4 per group"; "" for
// none.
func LimitsText(l sluice.Limits) string {
	var parts []string
	if l.Running > 0 {
		parts = append(parts, fmt.Sprintf("%d running", l.Running))
	}
	if l.Rate > 0 {
		parts = append(parts, RateText(l), fmt.Sprintf("burst %d", l.Burst))
	}
	if l.PerGroup > 0 {
		parts = append(parts, fmt.Sprintf("%d per group", l.PerGroup))
	}
	return strings.Join(parts, ", ")
}

// AtLimit reports whether no task is handed out because as many are leased as may run.
func AtLimit(s sluice.Stats) bool { return s.Limits.Running > 0 && s.Leased >= int64(s.Limits.Running) }

// LimitsNote says what the limits of a queue are, and whether it is at the one of what runs; "" if
// it has none.
func LimitsNote(s sluice.Stats) string {
	l := s.Limits
	if !AtLimit(s) {
		if text := LimitsText(l); text != "" {
			return "limits: " + text
		}
		return ""
	}
	text := fmt.Sprintf("at its limit: %d of %d running", s.Leased, l.Running)
	l.Running = 0
	if others := LimitsText(l); others != "" {
		text += "; " + others
	}
	return text
}
