package main

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWorker_SendsOrBuriesEveryMail runs the program for longer than its five seconds.
func TestWorker_SendsOrBuriesEveryMail(t *testing.T) {
	var out, log bytes.Buffer
	require.Zero(t, run([]string{"-for", "12s"}, &out, &log), &log)
	require.Contains(t, out.String(), "sent 24,")
	require.Contains(t, out.String(), "still in the queue: 0")
	require.Equal(t, 3, strings.Count(out.String(), "after attempt 1: no such address"))
	require.Equal(t, 3, strings.Count(out.String(), "after attempt 5: mailbox full"))
}

// TestWorker_StopsOnSIGTERM ends the program early. Its exit status is 0.
func TestWorker_StopsOnSIGTERM(t *testing.T) {
	time.AfterFunc(500*time.Millisecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGTERM) })
	var out, log bytes.Buffer
	began := time.Now()
	require.Zero(t, run([]string{"-for", "1m", "-mails", "2000"}, &out, &log), &log)
	require.Less(t, time.Since(began), 30*time.Second)
	require.NotContains(t, out.String(), "still in the queue: 0\n")
}

func TestWorker_RejectsBadFlags(t *testing.T) {
	for args, status := range map[string]int{"-h": 0, "-mails -1": 2, "-for -1s": 2, "x": 2, "-no-such": 2, "-redis 127.0.0.1:1": 1} {
		var out, log bytes.Buffer
		require.Equal(t, status, run(strings.Fields(args), &out, &log), args)
		require.NotEmpty(t, log.String())
	}
}
