package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// errCutOff says that a log ends in the middle of a command.
var errCutOff = errors.New("the log ends within a command")

// ReadLog calls each with the commands of an append-only file, in order, and with
// where in the file each one ends. It returns the end of the last one that is
// whole: a transaction without its EXEC is not. That is where a server begins which
// loads the file with "aof-load-truncated".
func ReadLog(log []byte, each func(command []string, end int)) (whole int, err error) {
	within := false // a transaction
	for at := 0; at < len(log); {
		command, next, err := readCommand(log, at)
		if errors.Is(err, errCutOff) {
			return whole, nil
		}
		if err != nil {
			return whole, fmt.Errorf("at byte %d: %w", at, err)
		}
		at = next
		switch command[0] {
		case "MULTI":
			within = true
		case "EXEC":
			within = false
		}
		if !within {
			whole = at
		}
		each(command, at)
	}
	return whole, nil
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
			return nil, 0, errCutOff
		}
		command[i] = string(log[at : at+size])
		at += size + 2
	}
	return command, at, nil
}

func readNumber(log []byte, at int, kind byte) (n, next int, err error) {
	if at >= len(log) {
		return 0, 0, errCutOff
	}
	if log[at] != kind {
		return 0, 0, fmt.Errorf("%q instead of %q", log[at], kind)
	}
	length := bytes.Index(log[at:min(at+32, len(log))], []byte("\r\n"))
	if length < 0 {
		return 0, 0, errCutOff
	}
	n, err = strconv.Atoi(string(log[at+1 : at+length]))
	if err == nil && (n < 0 || kind == '*' && n == 0) {
		err = fmt.Errorf("a length of %d", n)
	}
	return n, at + length + 2, err
}
