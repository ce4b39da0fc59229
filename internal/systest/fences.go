package systest

import (
	"fmt"
	"slices"
	"time"
)

// Grant is an acquisition with a fence: the server gave it between Sent and Known.
type Grant struct {
	Fence       int64
	Sent, Known time.Time
}

// WrongFences returns which fences of a lock were given twice, and which do not rise in the order
// in which they were given.
func WrongFences(name string, grants []Grant) (wrong []string) {
	sent, known := slices.Clone(grants), slices.Clone(grants)
	slices.SortFunc(sent, func(a, b Grant) int { return a.Sent.Compare(b.Sent) })
	slices.SortFunc(known, func(a, b Grant) int { return a.Known.Compare(b.Known) })
	seen := map[int64]bool{}
	highest := int64(0) // of those that were known before this one was asked for
	for _, g := range sent {
		for len(known) > 0 && known[0].Known.Before(g.Sent) {
			highest, known = max(highest, known[0].Fence), known[1:]
		}
		if seen[g.Fence] {
			wrong = append(wrong, fmt.Sprintf("%s: fence %d was given twice", name, g.Fence))
		}
		if g.Fence <= highest {
			wrong = append(wrong, fmt.Sprintf("%s: fence %d was given after %d", name, g.Fence, highest))
		}
		seen[g.Fence] = true
	}
	return wrong
}
