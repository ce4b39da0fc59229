package store

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// reader reads the parts of a script's reply, one after the other. Once a part is missing, or is
// not what is asked for, all that is read is the zero value, and err says so.
type reader struct {
	value any // the reply
	parts []any
	bad   bool
}

// newReader returns a reader of a reply, which is to be a list.
func newReader(value any) reader {
	parts, ok := value.([]any)
	return reader{value: value, parts: parts, bad: !ok}
}

// more reports whether there is another part.
func (r *reader) more() bool { return !r.bad && len(r.parts) > 0 }

// left returns how many parts are left.
func (r *reader) left() int { return len(r.parts) }

// err is an ErrCorrupt if a part was not what was asked for, or parts are left.
func (r *reader) err() error {
	if r.bad || len(r.parts) > 0 {
		return redisexec.Unexpected(r.value)
	}
	return nil
}

// part reads any part.
func (r *reader) part() any {
	if !r.more() {
		r.bad = true
		return nil
	}
	part := r.parts[0]
	r.parts = r.parts[1:]
	return part
}

// read reads a part of that type.
func read[T any](r *reader) T {
	part, ok := r.part().(T)
	r.bad = r.bad || !ok
	return part
}

// int reads an integer.
func (r *reader) int() int64 { return read[int64](r) }

// between reads an integer that is at least low and at most high.
func (r *reader) between(low, high int64) int64 {
	n := r.int()
	r.bad = r.bad || n < low || n > high
	return n
}

// text reads a text.
func (r *reader) text() string { return read[string](r) }

// list reads a part that is a list.
func (r *reader) list() []any { return read[[]any](r) }

// score reads a score of the library's.
func (r *reader) score() float64 {
	score := r.anyScore()
	r.bad = r.bad || math.IsInf(score, 0)
	return score
}

// anyScore reads a score that may be a foreign client's: it may be infinite.
func (r *reader) anyScore() float64 {
	switch part := r.part().(type) { // a text, but of servers that have scripts read scores as numbers
	case string:
		score, ok := parseScore(part)
		r.bad = r.bad || !ok
		return score
	case int64:
		return float64(part)
	case float64:
		r.bad = r.bad || math.IsNaN(part)
		return part
	}
	r.bad = true
	return 0
}

// maybeScore reads a score, or an empty text, which is none.
func (r *reader) maybeScore() (score float64, ok bool) {
	if r.more() && r.parts[0] == "" {
		r.parts = r.parts[1:]
		return 0, false
	}
	return r.score(), true
}

// parseScore parses a score, which may be infinite.
func parseScore(text string) (score float64, ok bool) {
	score, err := strconv.ParseFloat(text, 64)
	return score, err == nil && !math.IsNaN(score)
}

// TimeOf returns a score as a time, to the microsecond.
func TimeOf(score float64) time.Time {
	seconds, fraction := math.Modf(min(max(score, -1e11), 1e11))
	return time.Unix(int64(seconds), int64(math.Round(fraction*1e6))*1000)
}

// ExactTimeOf returns a score from 0 on as a time of which ScoreOf returns that score again: to 100
// ns, since the scores of our time lie 240 ns apart.
func ExactTimeOf(score float64) time.Time {
	seconds, fraction := math.Modf(min(score, 1e17))
	return time.Unix(int64(seconds), int64(math.Round(fraction*1e7))*100)
}

// ScoreOf returns a time from 1970 on as the nearest score.
func ScoreOf(t time.Time) float64 {
	score, _ := strconv.ParseFloat(fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()), 64)
	return score
}

// ScoreText writes a score as most servers print it: what is equal as text need not be compared as
// a number.
func ScoreText(score float64) string { return strconv.FormatFloat(score, 'g', 17, 64) }
