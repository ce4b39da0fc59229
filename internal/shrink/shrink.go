// Package shrink gives back the memory of maps and slices that have emptied: each keeps for ever
// what it needed at its peak.
package shrink

const (
	// fraction is how little of a peak is left in a map that is made anew.
	fraction = 32
	// smallest is the peak below which a map is left alone.
	smallest = 128
)

// Map returns m, or a copy of it if few of the entries are left that it had at its peak.
// The owner keeps peak for it, zero at first, and calls Map before or after each entry that
// it deletes, or after several. It must not call it while it ranges over m.
//
// A copy costs a thirty-second of the peak, once all the others have been deleted: a
// millisecond for a peak of a million.
func Map[M ~map[K]V, K comparable, V any](m M, peak *int) M {
	*peak = max(*peak, len(m))
	if *peak < smallest || len(m) > *peak/fraction {
		return m
	}
	*peak = len(m)
	c := make(M, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

// Slice returns s, or a copy of it if it uses little of its memory.
func Slice[S ~[]E, E any](s S) S {
	if cap(s) < smallest || len(s) > cap(s)/fraction {
		return s
	}
	return append(make(S, 0, 2*len(s)), s...)
}
