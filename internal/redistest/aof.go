package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Log returns the write commands that a real server has carried out, in order, as its
// append-only file has them: with absolute expiries, and with each write of a script as
// a command of its own. The server must have been started with "--appendonly", "yes".
func (s *Server) Log(t testing.TB) (commands [][]string) {
	t.Helper()
	content, err := os.ReadFile(s.LogFile())
	if err == nil {
		_, err = ReadLog(content, func(command []string, _ int) { commands = append(commands, command) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return commands
}

// LogFile returns the path of a real server's append-only file. It is no longer the whole
// log once the server has rewritten it.
func (s *Server) LogFile() string {
	files, _ := filepath.Glob(s.dir + "/appendonlydir/*.incr.aof")
	if len(files) == 0 {
		return s.dir + "/appendonly.aof" // Redis 6
	}
	return files[0]
}

// errTruncated says that a log ends in the middle of a command.
var errTruncated = errors.New("the log ends within a command")

// ReadLog reads the commands of an append-only file. It calls each with every complete
// command, in order, and with the command's end in the file. It returns the end of the
// last command that is complete and not part of a transaction without its EXEC: a server
// that loads the file with "aof-load-truncated" keeps this much.
func ReadLog(log []byte, each func(command []string, end int)) (complete int, err error) {
	inTransaction := false
	for at := 0; at < len(log); {
		command, next, err := readCommand(log, at)
		if errors.Is(err, errTruncated) {
			return complete, nil
		}
		if err != nil {
			return complete, fmt.Errorf("at byte %d: %w", at, err)
		}
		at = next
		switch command[0] {
		case "MULTI":
			inTransaction = true
		case "EXEC":
			inTransaction = false
		}
		if !inTransaction {
			complete = at
		}
		each(command, at)
	}
	return complete, nil
}

func readCommand(log []byte, at int) (command []string, next int, err error) {
	words, at, err := readNumber(log, at, '*')
	if err != nil {
		return nil, 0, err
	}
	command = make([]string, words)
	for i := range command {
		var size int
		if size, at, err = readNumber(log, at, '$'); err != nil {
			return nil, 0, err
		}
		if at+size+2 > len(log) {
			return nil, 0, errTruncated
		}
		command[i] = string(log[at : at+size])
		at += size + 2
	}
	return command, at, nil
}

// readNumber reads a line that consists of kind and a length.
func readNumber(log []byte, at int, kind byte) (n, next int, err error) {
	if at >= len(log) {
		return 0, 0, errTruncated
	}
	if log[at] != kind {
		return 0, 0, fmt.Errorf("%q instead of %q", log[at], kind)
	}
	length := bytes.Index(log[at:min(at+32, len(log))], []byte("\r\n"))
	if length < 0 {
		return 0, 0, errTruncated
	}
	n, err = strconv.Atoi(string(log[at+1 : at+length]))
	if err == nil && (n < 0 || kind == '*' && n == 0) {
		err = fmt.Errorf("a length of %d", n)
	}
	return n, at + length + 2, err
}
