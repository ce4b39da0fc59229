package sluice

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// One function per kind of reply; each is ErrCorrupt about what it doesn't know.

// decoder decodes the reply of a script that hands out entries: how many it
// looked at if there may be more, and the entries.
type decoder[E any] func(reply any) (looked int, entries []E, err error)

func errReply(reply any) error {
	return fmt.Errorf("%w: unexpected reply of type %T", ErrCorrupt, reply)
}

func integers(reply any, n int) ([]int64, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != n {
		return nil, errReply(reply)
	}
	out := make([]int64, n)
	for i, item := range list {
		if out[i], ok = item.(int64); !ok {
			return nil, errReply(item)
		}
	}
	return out, nil
}

func appendOutcomes(to []Outcome, reply any, n int) ([]Outcome, error) {
	codes, err := integers(reply, n)
	if err != nil {
		return to, err
	}
	for _, code := range codes {
		if code < int64(Added) || code > int64(Deferred) {
			return to, errReply(reply)
		}
		to = append(to, Outcome(code))
	}
	return to, nil
}

// decodeClaimed: seen, score of all, then id, attempt, payload of each.
func decodeClaimed(reply any) (int, []Entry, error) {
	list, ok := reply.([]any)
	if !ok || len(list) < 2 || len(list)%3 != 2 {
		return 0, nil, errReply(reply)
	}
	seen, _ := list[0].(int64)
	score, err := decodeScore(list[1])
	if err != nil {
		return 0, nil, err
	}
	entries := make([]Entry, 0, len(list)/3)
	for i := 2; i < len(list); i += 3 {
		e, err := decodeTask(list[i], list[i+1], list[i+2])
		if err != nil {
			return 0, nil, err
		}
		e.Score = score
		entries = append(entries, e)
	}
	return int(seen), entries, nil
}

// claimedUntil is the receipt in a reply that decodeClaimed has found good.
func claimedUntil(reply any) string {
	receipt, _ := reply.([]any)[1].(string)
	return receipt
}

// decodeEntries: seen, then id, score, attempt, payload of each.
func decodeEntries(reply any) (int, []Entry, error) {
	list, ok := reply.([]any)
	if !ok || len(list)%4 != 1 {
		return 0, nil, errReply(reply)
	}
	seen, _ := list[0].(int64)
	entries := make([]Entry, 0, len(list)/4)
	for i := 1; i < len(list); i += 4 {
		e, err := decodeEntry(list[i], list[i+1], list[i+2], list[i+3])
		if err != nil {
			return 0, nil, err
		}
		entries = append(entries, e)
	}
	return int(seen), entries, nil
}

func decodeGet(id string, reply any) (Entry, error) {
	list, ok := reply.([]any)
	switch {
	case ok && len(list) == 0:
		return Entry{}, ErrNotFound
	case ok && len(list) == 1:
		return Entry{}, ErrCorrupt
	case ok && len(list) == 3:
		return decodeEntry(id, list[0], list[1], list[2])
	}
	return Entry{}, errReply(reply)
}

func decodeEntry(id, score, attempt, payload any) (Entry, error) {
	e, err := decodeTask(id, attempt, payload)
	if err != nil {
		return Entry{}, err
	}
	if e.Score, err = decodeScore(score); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// decodeTask decodes an entry but for its score.
func decodeTask(id, attempt, payload any) (e Entry, err error) {
	var ok bool
	if e.ID, ok = id.(string); !ok {
		return Entry{}, errReply(id)
	}
	text, _ := attempt.(string)
	if e.Attempt, err = strconv.Atoi(text); err != nil {
		return Entry{}, errReply(attempt)
	}
	data, ok := payload.(string)
	if !ok {
		return Entry{}, errReply(payload)
	}
	if data != "" {
		e.Payload = []byte(data)
	}
	return e, nil
}

func decodeScore(v any) (float64, error) {
	text, _ := v.(string)
	score, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(score, 0) || math.IsNaN(score) {
		return 0, errReply(v)
	}
	return score, nil
}

func decodeHeartbeat(a answer) (float64, error) {
	switch {
	case a.reply == "" && a.unsure:
		return 0, fmt.Errorf("%w: a reply was lost, and the receipt is stale now", ErrUnknown)
	case a.reply == "":
		return 0, ErrStale
	case a.reply == "-":
		return 0, ErrCorrupt
	}
	return decodeScore(a.reply)
}

// decodeStats: due, scheduled, dead, then the scores, or ”, of the oldest due
// and the next scheduled task, and the time.
func decodeStats(reply any) (Stats, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 6 {
		return Stats{}, errReply(reply)
	}
	counts, err := integers(list[:3], 3)
	if err != nil {
		return Stats{}, err
	}
	s := Stats{Due: counts[0], Scheduled: counts[1], Dead: counts[2]}
	if list[3] != "" {
		oldest, err := decodeScore(list[3])
		if err != nil {
			return Stats{}, err
		}
		now, err := decodeScore(list[5])
		if err != nil {
			return Stats{}, err
		}
		s.OldestDue = time.Duration(min((now-oldest)*1e6, 9e15)) * time.Microsecond
	}
	if list[4] != "" {
		next, err := decodeScore(list[4])
		if err != nil {
			return Stats{}, err
		}
		s.NextDue = Entry{Score: next}.Time()
	}
	return s, nil
}

// decodeNext: microseconds, or -1 for nothing within an hour.
func decodeNext(reply any) (off time.Duration, err error) {
	us, err := integer(reply)
	if us < 0 {
		return time.Hour, err
	}
	return time.Duration(us) * time.Microsecond, err
}
