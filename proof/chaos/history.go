package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// maxPiece is how many operations a piece of a history may have.
	maxPiece = 5000
	// maxCheckTime is how long porcupine may check a piece. After that the result is
	// "unknown", which counts as a failure.
	maxCheckTime = 30 * time.Second
)

// transition is an operation on a lock, which porcupine sees as a register of owners: an
// owner acquires a free lock, or releases its own.
type transition struct {
	owner   int
	acquire bool
}

// ownership is the model: the owner of the lock, 0 for none.
var ownership = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, _ any) (bool, any) {
		owner, t := state.(int), input.(transition)
		if t.acquire {
			return owner == 0, t.owner
		}
		return owner == t.owner, 0
	},
}

// histories returns a history for each name: of the locks that were held while the server
// was reliable. It is sound to leave out the other locks, and those whose acquisition had an
// unknown outcome: a correct history without some of its holds is still correct.
//
// The acquisition lies between the call and its return. The release lies between the last
// time that Valid was true and the return of Unlock. Without an Unlock, the hold ended at the
// deadline at the latest, or when its process was killed.
func (c *checker) histories() map[string][]porcupine.Operation {
	histories := map[string][]porcupine.Operation{}
	for i, r := range c.beliefs() {
		if c.excused(r) || isGate(r.Name) || isMixed(r.Name) {
			continue
		}
		end := max(r.Until, r.Deadline)
		if r.Unlock != 0 && r.Return != 0 {
			end = max(r.Until, r.Return)
		} else if died, killed := c.deaths[r.Process]; killed {
			end = max(r.Until, died)
		}
		histories[r.Name] = append(histories[r.Name],
			porcupine.Operation{ClientId: i, Input: transition{i + 1, true}, Call: int64(r.Call), Return: int64(r.From)},
			porcupine.Operation{ClientId: i, Input: transition{i + 1, false}, Call: int64(r.Until), Return: int64(end)})
	}
	return histories
}

// pieces cuts a long history at moments when no operation was in flight and the lock was
// free.
func pieces(history []porcupine.Operation) (all [][]porcupine.Operation) {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	if len(history) == 0 {
		return nil
	}
	begin, owned, last := 0, 0, int64(0)
	for i, o := range history {
		if i-begin > maxPiece/2 && owned == 0 && o.Call > last {
			all = append(all, history[begin:i])
			begin = i
		}
		if o.Input.(transition).acquire {
			owned++
		} else {
			owned--
		}
		last = max(last, o.Return)
	}
	return append(all, history[begin:])
}

// linearize checks the histories of all names with porcupine.
func (c *checker) linearize() {
	c.locks = c.histories()
	for name, history := range c.locks {
		c.counts["porcupine histories"]++
		c.counts["porcupine operations"] += len(history)
		if err := legal(history); err != nil {
			c.report("the history of %s: %v", name, err)
		}
	}
}

// legal checks that a history is one of a lock.
func legal(history []porcupine.Operation) error {
	for _, piece := range pieces(history) {
		if len(piece) > maxPiece {
			return fmt.Errorf("a piece of %d operations is too long for the checker", len(piece))
		}
		if result := porcupine.CheckOperationsTimeout(ownership, piece, maxCheckTime); result != porcupine.Ok {
			return fmt.Errorf("%d operations from %v are not those of a lock: %s", len(piece), time.Duration(piece[0].Call), result)
		}
	}
	return nil
}
