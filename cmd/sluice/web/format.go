package web

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// functions are what pages call.
var functions = template.FuncMap{
	"text": text, "short": short, "shown": shown, "value": formValue,
	"count": count, "span": span, "bytes": size, "clock": clock, "hour": hour, "timeOf": inspect.TimeOf, "stamp": stamp, "plural": plural,
	"limits": limits, "atLimit": inspect.AtLimit, "limitRate": inspect.RateText,
	"unattended": isUnattended, "processOf": processOf, "heldBy": heldBy,
	"len64":  func(n int) int64 { return int64(n) },
	"linked": func(id string) bool { return id != "" && len(id) <= longestID }, // longer than the library's own: a foreign producer's
}

// count writes 1234567 as 1,234,567.
func count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// plural returns "1 task" or "2 tasks".
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return count(n) + " " + thing + "s"
}

// span writes a length of time in its two largest units.
func span(d time.Duration) string {
	if d < 0 {
		d = -d
	}
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return "<1s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm %02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh %02dm", d/time.Hour, d%time.Hour/time.Minute)
	case d < 1000*day:
		return fmt.Sprintf("%dd %02dh", d/day, d%day/time.Hour)
	}
	return count(int64(d/day)) + "d"
}

// limits says what a queue's limits are, with how many are leased if it is at the limit of these; empty for none.
func limits(s sluice.Stats) string {
	_, text, _ := strings.Cut(inspect.LimitsNote(s), ": ")
	return text
}

// size writes a number of bytes.
func size(n int) string {
	switch {
	case n < 1000:
		return plural(int64(n), "byte")
	case n < 1_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// rate writes a change per second, with its sign.
func rate(perSecond float64) string {
	sign, n := "+", perSecond
	if n < 0 {
		sign, n = "−", -n
	}
	switch {
	case n < 0.05:
		return "steady"
	case n < 10:
		return fmt.Sprintf("%s%.1f/s", sign, n)
	}
	return sign + count(int64(math.Round(n))) + "/s"
}

// often writes how often something happens: a second or, if that is seldom, a minute.
func often(perSecond float64) string {
	perMinute := perSecond * 60
	switch {
	case perMinute <= 0:
		return "none"
	case perMinute < 10:
		return fmt.Sprintf("%.1f/min", perMinute)
	case perSecond < 1:
		return fmt.Sprintf("%.0f/min", perMinute)
	case perSecond < 10:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return count(int64(math.Round(perSecond))) + "/s"
}

// hour writes the time of a day.
func hour(t time.Time) string { return t.UTC().Format("15:04") }

// clock writes a time for people, stamp for machines.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
