package sluice

import (
	"slices"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// hookList has all LockHooks or QueueHooks that were given, in the order in which they are called; nil for none.
type hookList[H any] []*H

// have reports whether one of them has a hook for which isSet is true.
func (all hookList[H]) have(isSet func(h *H) bool) bool { return slices.ContainsFunc(all, isSet) }

// with returns the list with another one behind it, if that has any hook.
func (all hookList[H]) with(h *H, isSet bool) hookList[H] {
	if !isSet {
		return all
	}
	return append(slices.Clip(all), h)
}

// callHook calls a hook, if it is set. A panic of it is dropped.
func callHook(isSet bool, hook func()) {
	if isSet {
		var dropped error
		defer redisexec.Contain(&dropped)
		hook()
	}
}
