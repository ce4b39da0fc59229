package main

import (
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows how far long work has come. The zero value shows nothing.
type progress struct{ bar *progressbar.ProgressBar }

// newProgress returns the progress of n steps, -1 if their number is not known. It is shown on
// standard error.
func (a *app) newProgress(what string, n int) progress {
	if a.progress == "never" || a.progress == "auto" && !a.errIsTTY {
		return progress{}
	}
	return progress{progressbar.NewOptions(n,
		progressbar.OptionSetWriter(a.errOut), progressbar.OptionSetDescription(what), progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionSetItsString("tasks"), progressbar.OptionSetWidth(20),
		progressbar.OptionThrottle(progressEvery), progressbar.OptionClearOnFinish(),
	)}
}

func (p progress) add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n)
	}
}

// end clears the line.
func (p progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

// progressEvery is how often progress is drawn anew, at the most.
const progressEvery = 100 * time.Millisecond
