package web

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// functions are what pages call.
var functions = template.FuncMap{
	"text": text, "short": short, "name": listName, "noRoom": hasNoRoom, "shown": shown, "value": formValue,
	"count": inspect.Count, "span": span, "bytes": size, "clock": clock, "hour": hour, "timeOf": inspect.TimeOf, "stamp": stamp, "plural": inspect.Plural,
	"limits": limits, "atLimit": inspect.AtLimit, "limitRate": inspect.RateText,
	"unattended": isUnattended, "processOf": processOf, "heldBy": heldBy,
	"len64":  func(n int) int64 { return int64(n) },
	"linked": func(id string) bool { return id != "" && len(id) <= longestID }, // longer than the library's own: a foreign producer's
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
	return inspect.Count(int64(d/day)) + "d"
}

// limits says what a queue's limits are, with how many are leased if it is at the limit of these;
// empty for none.
func limits(s sluice.Stats) string {
	_, text, _ := strings.Cut(inspect.LimitsNote(s), ": ")
	return text
}

// size writes a number of bytes.
func size(n int) string {
	switch {
	case n < 1000:
		return inspect.Plural(int64(n), "byte")
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
	return sign + inspect.Count(int64(math.Round(n))) + "/s"
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
	return inspect.Count(int64(math.Round(perSecond))) + "/s"
}

// hour writes the time of a day.
func hour(t time.Time) string { return t.UTC().Format("15:04") }

// clock writes a time for people, stamp for machines.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
