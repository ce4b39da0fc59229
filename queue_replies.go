package sluice

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
	"github.com/sluice-go/sluice/internal/wire"
)

// One function decodes each kind of reply. What it does not know is ErrCorrupt. Those that
// are used once are beside their method: of dead letters in dead.go, of acquisitions in
// lock_grant.go.

// decoder decodes the reply of a script that hands out entries: where it has stopped if
// there may be more, as a number of entries or a cursor, and the entries.
type decoder[P comparable] func(value any) (stopped P, entries []Entry, err error)

// decodeInts decodes a list of n integers.
func decodeInts[I ~int64](value any, n int) ([]I, error) {
	list, ok := value.([]any)
	if !ok || len(list) != n {
		return nil, redisexec.Unexpected(value)
	}
	out := make([]I, n)
	for i, item := range list {
		number, err := redisexec.Int(item)
		if err != nil {
			return nil, err
		}
		out[i] = I(number)
	}
	return out, nil
}

// decodeAnswers decodes what giveback.lua and bury.lua say of n tasks. What is behind it is for decodeDropped.
func decodeAnswers(value any, n int) ([]taskloop.Answer, error) {
	if list, ok := value.([]any); ok && len(list) > n {
		value = list[:n]
	}
	answers, err := decodeInts[taskloop.Answer](value, n)
	if err != nil {
		return nil, err
	}
	for _, answer := range answers {
		if !answer.IsKnown() {
			return nil, redisexec.Unexpected(value)
		}
	}
	return answers, nil
}

// decodeAnswer decodes what a script says of one task.
func decodeAnswer(value any) (taskloop.Answer, error) {
	code, err := redisexec.Int(value)
	answer := taskloop.Answer(code)
	if err == nil && !answer.IsKnown() {
		err = redisexec.Unexpected(value)
	}
	return answer, err
}

// appendOutcomes decodes the time from which the delays of the batch's next script count at the
// earliest, and the outcomes of n tasks.
func appendOutcomes(to []Outcome, value any, n int) (outcomes []Outcome, next string, err error) {
	list, ok := value.([]any)
	if !ok || len(list) == 0 || len(list) != n+1 && len(list) != 1 {
		return to, "", redisexec.Unexpected(value)
	}
	if _, err := decodeScore(list[0]); err != nil {
		return to, "", err
	}
	next, _ = list[0].(string)
	if len(list) == 1 {
		return append(to, slices.Repeat([]Outcome{Added}, n)...), next, nil
	}
	codes, err := decodeInts[int64](list[1:], n)
	if err != nil {
		return to, "", err
	}
	for _, code := range codes {
		if code < int64(Added) || code > int64(Deferred) {
			return to, "", redisexec.Unexpected(value)
		}
		to = append(to, Outcome(code))
	}
	return to, next, nil
}

// decodeDone decodes what a script says of n tasks that says nothing if all are done.
func decodeDone(value any, n int) ([]taskloop.Answer, error) {
	if list, ok := value.([]any); !ok || len(list) > 0 {
		return decodeAnswers(value, n)
	}
	return slices.Repeat([]taskloop.Answer{taskloop.Accepted}, n), nil
}

// exchanged is the reply of exchange.lua.
type exchanged[E any] struct {
	read    int    // how many due tasks the claim has looked at: if any, there may be more
	receipt string // of all tasks
	tasks   []E
	next    time.Duration // until the earliest other task is due, an hour for later or never; negative, for how long it has been
	waiting int           // clients; 0 if the server has not counted them
	dropped dropped
}

// asEntry and asTask make what an exchange hands out of a task that became due then.
func asEntry(e Entry, due float64) Entry {
	e.Due = timeOf(due)
	return e
}

func asTask(e Entry, due float64) taskloop.Task {
	return taskloop.Task{ID: e.ID, Payload: e.Payload, Header: e.Header, Score: e.Score, Due: due, Attempt: e.Attempt}
}

// longestDue is for how many microseconds a task is said to have been due at most.
const longestDue = 9_000_000_000_000_000

// decodeExchanged decodes how many were read, the score of all, their IDs, the attempts unless all are first ones, the
// payloads unless all are empty, when each was due, in one text, the answers, the next due time and how many clients
// wait; and what decodeDropped does.
func decodeExchanged[E any](value any, as func(e Entry, due float64) E) (x exchanged[E], err error) {
	list, ok := value.([]any)
	if !ok || len(list) < 9 {
		return x, redisexec.Unexpected(value)
	}
	next, err := decodeInts[int64](list[7:9], 2)
	if err != nil {
		return x, err
	}
	score, err := decodeScore(list[1])
	if err != nil {
		return x, err
	}
	read, _ := list[0].(int64)
	x.read, x.dropped = int(read), decodeDropped(value, 9)
	x.receipt, _ = list[1].(string)
	x.next = time.Duration(min(max(next[0], -longestDue), farOff.Microseconds())) * time.Microsecond
	x.waiting = int(next[1])
	ids, isList := list[2].([]any)
	attempts, areAttempts := list[3].([]any)
	payloads, arePayloads := list[4].([]any)
	dues, areDues := list[5].(string)
	if !isList || !areAttempts || !arePayloads || !areDues || len(attempts) > 0 && len(attempts) != len(ids) || len(payloads) > 0 && len(payloads) != len(ids) {
		return x, redisexec.Unexpected(value)
	}
	x.tasks = make([]E, 0, len(ids))
	for i, id := range ids {
		var attempt, payload any = int64(1), ""
		if len(attempts) > 0 {
			attempt = attempts[i]
		}
		if len(payloads) > 0 {
			payload = payloads[i]
		}
		e, err := decodeTask(id, attempt, payload)
		if err != nil {
			return x, err
		}
		word, further, _ := strings.Cut(dues, " ")
		due, err := parseScore(word)
		if err != nil || math.IsInf(due, 0) {
			return x, redisexec.Unexpected(value)
		}
		dues = further
		e.Score = score
		x.tasks = append(x.tasks, as(e, due))
	}
	if dues != "" {
		return x, redisexec.Unexpected(value)
	}
	return x, nil
}

// exchangedFor decodes the reply to a call, or returns its part of a group's.
func exchangedFor(value any) (exchanged[Entry], error) {
	if x, ok := value.(exchanged[Entry]); ok {
		return x, nil
	}
	return decodeExchanged(value, asEntry)
}

// cut returns the first n tasks at most, and leaves the others.
func (x *exchanged[E]) cut(n int) exchanged[E] {
	first, n := *x, min(n, len(x.tasks))
	first.tasks, x.tasks = x.tasks[:n:n], x.tasks[n:]
	return first
}

// decodeFinished decodes what exchange.lua says of n tasks that it was to finish, or returns a call's part of a group's.
func decodeFinished(value any, n int) ([]taskloop.Answer, error) {
	if answers, ok := value.([]taskloop.Answer); ok {
		return answers, nil
	}
	list, ok := value.([]any)
	if !ok || len(list) < 9 {
		return nil, redisexec.Unexpected(value)
	}
	return decodeDone(list[6], n)
}

// dropped is how many dead letters a script has dropped, and the IDs of some.
type dropped struct {
	count int64
	ids   []any
}

// decodeDropped decodes what a script says behind the first n parts of its reply, if it has dropped any.
func decodeDropped(value any, n int) (d dropped) {
	if list, _ := value.([]any); len(list) > n {
		d.count, _ = list[n].(int64)
		d.ids = list[n+1:]
	}
	return d
}

// offOf returns how far off the head is that is due in so many microseconds, or in an hour.
func offOf(us int64) time.Duration {
	if us < 0 || us > time.Hour.Microseconds() {
		return farOff
	}
	return time.Duration(us) * time.Microsecond
}

// decodeEntries decodes how many were read, then id, score, attempt and payload of each, which is due.
func decodeEntries(value any) (int, []Entry, error) {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return 0, nil, redisexec.Unexpected(value)
	}
	seen, _ := list[0].(int64)
	entries, err := decodeWaiting(list[1:])
	return int(seen), entries, err
}

// decodeWaiting is decodeEntryList of tasks that are due at their scores.
func decodeWaiting(list []any) ([]Entry, error) {
	entries, err := decodeEntryList(list)
	for i := range entries {
		entries[i].Due = entries[i].Time()
	}
	return entries, err
}

// decodeEntryList decodes id, score, attempt and payload of each entry.
func decodeEntryList(list []any) ([]Entry, error) {
	if len(list)%4 != 0 {
		return nil, redisexec.Unexpected(list)
	}
	entries := make([]Entry, 0, len(list)/4)
	for i := 0; i < len(list); i += 4 {
		e, err := decodeEntry(list[i], list[i+1], list[i+2], list[i+3])
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// decodeDead decodes id, time of death, attempt, reason and payload of each dead letter.
func decodeDead(list []any) ([]Entry, error) {
	if len(list)%5 != 0 {
		return nil, redisexec.Unexpected(list)
	}
	letters := make([]Entry, 0, len(list)/5)
	for i := 0; i < len(list); i += 5 {
		e, err := decodeRead(list[i], list[i+2], list[i+4])
		if err != nil {
			return nil, err
		}
		if e.Score, err = decodeAnyScore(list[i+1]); err != nil {
			return nil, err
		}
		var ok bool
		if e.Reason, ok = list[i+3].(string); !ok {
			return nil, fmt.Errorf("%w of a reason", redisexec.Unexpected(list[i+3]))
		}
		e.State = Dead
		letters = append(letters, e)
	}
	return letters, nil
}

// cursor is where a page of a list ends: the score, as text, and the ID of its last entry.
// The zero value is the beginning, and the end: there is nothing more.
type cursor struct{ score, id string }

// cursorOf returns where a list goes on behind e. The zero Entry is its beginning.
func cursorOf(e Entry) cursor {
	switch {
	case e.ID == "" && e.Score == 0:
		return cursor{}
	case math.IsInf(e.Score, 0): // a foreign client's
		return cursor{strings.TrimPrefix(strings.ToLower(receiptOf(e)), "+"), e.ID} // as servers print it
	}
	return cursor{receiptOf(e), e.ID}
}

// decodePage decodes where a page ends, and what decodeRest makes of the rest.
func decodePage(value any, decodeRest func(list []any) ([]Entry, error)) (cursor, []Entry, error) {
	list, ok := value.([]any)
	if !ok || len(list) < 2 {
		return cursor{}, nil, redisexec.Unexpected(value)
	}
	score, isText := list[0].(string)
	id, isID := list[1].(string)
	if !isText || !isID {
		return cursor{}, nil, redisexec.Unexpected(value)
	}
	entries, err := decodeRest(list[2:])
	return cursor{score, id}, entries, err
}

// decodeGet decodes the time, and a task of that ID if there is one.
func decodeGet(id string, value any) (e Entry, now time.Time, err error) {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return e, now, redisexec.Unexpected(value)
	}
	seconds, err := decodeScore(list[0])
	if err != nil {
		return e, now, err
	}
	now = timeOf(seconds)
	switch len(list) {
	case 1:
		return e, now, ErrNotFound
	case 2:
		return e, now, ErrCorrupt
	case 6:
		e, err = decodeGotten(id, list[1:])
		return e, now, err
	}
	return e, now, redisexec.Unexpected(value)
}

// decodeGotten decodes score, attempt, payload, state and reason of a task.
func decodeGotten(id string, list []any) (Entry, error) {
	e, err := decodeEntry(id, list[0], list[1], list[2])
	if err != nil {
		return Entry{}, err
	}
	if e.State, err = decodeState(list[3]); err != nil {
		return Entry{}, err
	}
	var ok bool
	if e.Reason, ok = list[4].(string); !ok {
		return Entry{}, redisexec.Unexpected(list[4])
	}
	if e.State == Scheduled || e.State == Due {
		e.Due = e.Time()
	}
	return e, nil
}

// decodeState decodes the state of a task.
func decodeState(value any) (State, error) {
	code, err := redisexec.Int(value)
	if err == nil && (code < int64(Absent) || code > int64(Dead)) {
		err = redisexec.Unexpected(value)
	}
	if err != nil {
		return Absent, err
	}
	return State(code), nil
}

func decodeEntry(id, score, attempt, payload any) (Entry, error) {
	e, err := decodeRead(id, attempt, payload)
	if err != nil {
		return Entry{}, err
	}
	if e.Score, err = decodeScore(score); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// decodeTask decodes an entry except its score.
func decodeTask(id, attempt, payload any) (e Entry, err error) {
	var ok bool
	if e.ID, ok = id.(string); !ok {
		return Entry{}, redisexec.Unexpected(id)
	}
	switch n := attempt.(type) {
	case int64:
		e.Attempt = int(n)
	case string:
		if e.Attempt, err = strconv.Atoi(n); err != nil {
			return Entry{}, redisexec.Unexpected(attempt)
		}
	default:
		return Entry{}, redisexec.Unexpected(attempt)
	}
	data, ok := payload.(string)
	if !ok {
		return Entry{}, redisexec.Unexpected(payload)
	}
	e.Header, e.Payload = wire.Unpack(data)
	return e, nil
}

// decodeRead is decodeTask of a script that may leave out a payload: see payload.lua.
func decodeRead(id, attempt, payload any) (e Entry, err error) {
	omitted, left := payload.(int64)
	if !left {
		return decodeTask(id, attempt, payload)
	}
	if e, err = decodeTask(id, attempt, ""); omitted < 1 {
		err = redisexec.Unexpected(payload)
	}
	e.Omitted = int(omitted)
	return e, err
}

func decodeScore(v any) (float64, error) {
	score, err := decodeAnyScore(v)
	if err != nil || math.IsInf(score, 0) {
		return 0, redisexec.Unexpected(v)
	}
	return score, nil
}

// decodeAnyScore decodes a score that may be a foreign client's: it may be infinite.
func decodeAnyScore(v any) (float64, error) {
	text, _ := v.(string)
	score, err := parseScore(text)
	if err != nil {
		return 0, redisexec.Unexpected(v)
	}
	return score, nil
}

// parseScore parses a score, which may be infinite.
func parseScore(text string) (float64, error) {
	score, err := strconv.ParseFloat(text, 64)
	if err == nil && math.IsNaN(score) {
		err = strconv.ErrSyntax
	}
	return score, err
}
