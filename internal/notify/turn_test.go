package notify

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNotifier_ATurnLooksAtWhatHasChanged: beside a thousand channels that are in use, a short wait
// on another one allocates and looks at no more than beside none. A loop of short waits on one
// channel leaves one entry for the loop to look at.
func TestNotifier_ATurnLooksAtWhatHasChanged(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		for i := range 1000 {
			s.Join(fmt.Sprint("used", i), nil)
		}
		synctest.Wait()
		lists := func() (wanted, idle int) {
			s.Notifier.mu.Lock()
			defer s.Notifier.mu.Unlock()
			r := s.routeOf("a")
			return len(r.wanted), r.idle.Len()
		}
		wanted, idle := lists()
		require.Zero(t, wanted)
		require.Zero(t, idle, "those in use are not looked at")
		for range 1000 {
			s.Leave("a", s.Join("a", nil))
		}
		_, idle = lists()
		require.Equal(t, 1, idle)
		synctest.Wait()
		wanted, _ = lists()
		require.Zero(t, wanted)
		time.Sleep(2 * linger)
		synctest.Wait()
		_, idle = lists()
		require.Zero(t, idle)
		require.NotContains(t, s.m.PubSubChannels("*"), "a")
		require.Len(t, s.m.PubSubChannels("*"), 1000)
	})
}

// TestNotifier_WhatIsInUseAgainStays, and ends five seconds after it was left again, behind others
// that were left in between.
func TestNotifier_WhatIsInUseAgainStays(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		a, b := s.Join("a", nil), s.Join("b", nil)
		synctest.Wait()
		s.Leave("a", a)
		time.Sleep(time.Second)
		a = s.Join("a", nil)
		s.Leave("b", b)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"a"}, s.m.PubSubChannels("*"))
		for range 3 {
			s.Leave("a", a)
			time.Sleep(linger - time.Millisecond)
			s.Leave("a", s.Join("a", nil))
			s.Leave("b", s.Join("b", nil))
			time.Sleep(linger - time.Millisecond)
			a = s.Join("a", nil)
			time.Sleep(time.Millisecond)
			synctest.Wait()
			require.Equal(t, []string{"a"}, s.m.PubSubChannels("*"))
		}
		s.Leave("a", a)
		time.Sleep(linger - time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"a"}, s.m.PubSubChannels("*"))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Empty(t, s.m.PubSubChannels("*"))
	})
}
