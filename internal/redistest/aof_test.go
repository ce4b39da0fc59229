package redistest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestReadLog_StopsAtTheLastCompleteCommand cuts a log off at every byte.
func TestReadLog_StopsAtTheLastCompleteCommand(t *testing.T) {
	t.Parallel()
	const log = "*1\r\n$4\r\nPING\r\n*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nDEL\r\n$1\r\na\r\n*1\r\n$4\r\nEXEC\r\n"
	for cut := range len(log) + 1 {
		var commands [][]string
		complete, err := redistest.ReadLog([]byte(log[:cut]), func(command []string, _ int) { commands = append(commands, command) })
		require.NoError(t, err)
		switch {
		case cut < 14:
			require.Zero(t, complete)
		case cut < len(log): // the transaction has no EXEC yet
			require.Equal(t, 14, complete)
		default:
			require.Equal(t, len(log), complete)
			require.Equal(t, [][]string{{"PING"}, {"MULTI"}, {"DEL", "a"}, {"EXEC"}}, commands)
		}
	}
	for _, bad := range []string{"PING\r\n", "*x\r\n", "*-1\r\n", "*0\r\n", "*1\r\n+4\r\n"} {
		_, err := redistest.ReadLog([]byte(bad), func([]string, int) {})
		require.Error(t, err, bad)
	}
}
