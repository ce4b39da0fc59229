package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// maxPiece is how many operations a piece of a history may have.
	maxPiece = 5000
	// maxThought is how long the checker may think about one. After that the answer
	// is "unknown", which counts as failed.
	maxThought = 30 * time.Second
)

// turn is an operation on a lock as a register of owners: taking it where nobody
// owns it, or giving it up.
type turn struct {
	owner int
	take  bool
}

// ownership is the model: whoever owns the lock, 0 for nobody.
var ownership = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, _ any) (bool, any) {
		owner, t := state.(int), input.(turn)
		if t.take {
			return owner == 0, t.owner
		}
		return owner == t.owner, 0
	},
}

// histories makes a history for each name, of the locks that were held while the
// server's word was good. To leave out others is sound: what remains of a history in
// which one at a time owns a lock is one. So are those whose outcome is not known:
// nobody believed to own them.
//
// A lock is taken between the call and when it was there. It is given up between the
// last time when it was seen to be held and the return of Unlock. Where there was
// none, the holder's belief ended at its deadline at the latest, or when its process
// was killed.
func (c *checker) histories() map[string][]porcupine.Operation {
	histories := map[string][]porcupine.Operation{}
	for i, r := range c.beliefs() {
		if c.excused(r) {
			continue
		}
		end := max(r.Until, r.Deadline)
		if r.Unlock != 0 && r.Return != 0 {
			end = max(r.Until, r.Return)
		} else if died, killed := c.deaths[r.Process]; killed {
			end = max(r.Until, died)
		}
		histories[r.Name] = append(histories[r.Name],
			porcupine.Operation{ClientId: i, Input: turn{i + 1, true}, Call: int64(r.Call), Return: int64(r.From)},
			porcupine.Operation{ClientId: i, Input: turn{i + 1, false}, Call: int64(r.Until), Return: int64(end)})
	}
	return histories
}

// pieces cuts a history that is long where nothing was under way and nobody owned the
// lock.
func pieces(history []porcupine.Operation) (all [][]porcupine.Operation) {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	begin, owned, last := 0, 0, int64(0)
	for i, o := range history {
		if i-begin > maxPiece/2 && owned == 0 && o.Call > last {
			all = append(all, history[begin:i])
			begin = i
		}
		if o.Input.(turn).take {
			owned++
		} else {
			owned--
		}
		last = max(last, o.Return)
	}
	return append(all, history[begin:])
}

// linearize puts the histories of all names to porcupine.
func (c *checker) linearize() {
	for name, history := range c.histories() {
		c.counts["porcupine histories"]++
		c.counts["porcupine operations"] += len(history)
		for _, piece := range pieces(history) {
			if len(piece) > maxPiece {
				c.violation("the history of %s has a piece of %d operations: too long to be checked", name, len(piece))
				continue
			}
			if verdict := porcupine.CheckOperationsTimeout(ownership, piece, maxThought); verdict != porcupine.Ok {
				c.violation("the history of %s (%d operations from %v) is not one of a lock: %s", name, len(piece), time.Duration(piece[0].Call), verdict)
			}
		}
	}
}
