package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// lineEvery is the shortest time between two plain lines of progress.
const lineEvery = 500 * time.Millisecond

// screen prints progress: as a bar in a terminal, and as plain lines elsewhere. It is safe for
// concurrent use.
type screen struct {
	mu       sync.Mutex // guards what follows
	out      io.Writer
	terminal bool
	bar      *progressbar.ProgressBar // nil if none is shown
	shown    standing
	last     time.Time
}

func newScreen(out *os.File) *screen {
	return &screen{out: out, terminal: term.IsTerminal(int(out.Fd()))}
}

// say prints a line. A bar continues below it.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	fmt.Fprintf(s.out, format+"\n", args...)
}

// progress shows the state of the sale.
func (s *screen) progress(now standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%d of %d paid, %d unpaid, %d cancelled", now.paid, now.total, now.unpaid, now.cancelled)
	switch {
	case s.terminal:
		if s.bar == nil {
			s.bar = progressbar.NewOptions(now.total, progressbar.OptionSetWriter(s.out), progressbar.OptionSetWidth(30),
				progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish())
		}
		_ = s.bar.Set(min(now.paid, now.total))
		s.bar.Describe(text)
	case now != s.shown && now.stock != now.total && time.Since(s.last) >= lineEvery:
		fmt.Fprintln(s.out, text)
		s.shown, s.last = now, time.Now()
	}
}

// endProgress removes the bar.
func (s *screen) endProgress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear()
		s.bar = nil
	}
}
