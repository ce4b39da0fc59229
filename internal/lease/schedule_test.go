package lease

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type planned struct {
	place
	id int
}

// TestSchedule_IsInOrderAfterRandomChanges compares a schedule with a sorted slice.
func TestSchedule_IsInOrderAfterRandomChanges(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	start := time.Now()
	var s schedule[*planned]
	var model, all []*planned
	for id := range 300 {
		all = append(all, &planned{id: id})
	}
	sort := func() {
		slices.SortFunc(model, func(a, b *planned) int { return cmp.Or(a.at.Compare(b.at), a.id-b.id) })
	}
	for step := range 5000 {
		e := all[rnd.IntN(len(all))]
		among := slices.Index(model, e)
		switch {
		case rnd.IntN(3) > 0:
			s.set(e, start.Add(time.Duration(rnd.IntN(1000))*time.Second))
			if among < 0 {
				model = append(model, e)
			}
		case among >= 0:
			s.remove(e)
			model = slices.Delete(model, among, among+1)
		default:
			s.remove(e) // is not in it
		}
		require.Len(t, s, len(model))
		if len(model) > 0 && step%10 == 0 {
			sort()
			at, ok := s.next()
			require.True(t, ok)
			require.Equal(t, model[0].at, at)
		}
		for i, e := range s {
			if e.index != i+1 { // Equal would take most of the time
				t.Fatalf("step %d: %d stands at %d", step, e.index, i+1)
			}
		}
	}
	require.Greater(t, len(model), 50)
	sort()
	for _, want := range model {
		require.Equal(t, want.at, s[0].at)
		s.remove(s[0])
	}
	_, ok := s.next()
	require.False(t, ok)
}

// TestSchedule_GivesItsMemoryBack once it has emptied, and holds on to no element.
func TestSchedule_GivesItsMemoryBack(t *testing.T) {
	t.Parallel()
	var s schedule[*planned]
	now := time.Now()
	for id := range 20_000 {
		s.set(&planned{id: id}, now.Add(time.Duration(id)))
	}
	for len(s) > 300 {
		s.remove(s[0])
	}
	require.Less(t, cap(s), 10_000)
	for len(s) > 0 {
		s.remove(s[len(s)-1])
	}
	for _, e := range s[:cap(s)] {
		require.Nil(t, e)
	}
}
