package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/anishathalye/porcupine"
)

// event is an operation of a history in a file, a line of JSON. docs/guarantees.md describes it.
type event struct {
	Client int    `json:"client"` // a number for each hold, since a client has many callers
	Call   int64  `json:"call"`   // in ns of the machine's monotonic clock
	Return int64  `json:"return"`
	Input  input  `json:"input"`
	Output string `json:"output"` // always "ok": other results change nothing, and are left out
}

type input struct {
	Op    string `json:"op"` // "acquire" or "release"
	Owner int    `json:"owner"`
}

// writeHistories writes a file for each name.
func writeHistories(folder, prefix string, histories map[string][]porcupine.Operation) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, history := range histories {
		file, err := os.Create(filepath.Join(folder, prefix+name+".jsonl"))
		if err != nil {
			return err
		}
		out := bufio.NewWriter(file)
		lines := json.NewEncoder(out)
		for _, o := range history {
			t := o.Input.(transition)
			e := event{o.ClientId, o.Call, o.Return, input{"release", t.owner}, "ok"}
			if t.acquire {
				e.Input.Op = "acquire"
			}
			_ = lines.Encode(e) // an error stays with out
		}
		err = out.Flush()
		if closing := file.Close(); err == nil {
			err = closing
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readHistory reads what writeHistories has written.
func readHistory(r io.Reader) (history []porcupine.Operation, err error) {
	lines := json.NewDecoder(r)
	lines.DisallowUnknownFields()
	for lines.More() {
		var e event
		if err := lines.Decode(&e); err != nil {
			return nil, fmt.Errorf("operation %d: %w", len(history)+1, err)
		}
		if e.Input.Op != "acquire" && e.Input.Op != "release" || e.Input.Owner <= 0 || e.Output != "ok" || e.Return < e.Call {
			return nil, fmt.Errorf("operation %d is none of a lock: %+v", len(history)+1, e)
		}
		history = append(history, porcupine.Operation{ClientId: e.Client, Input: transition{e.Input.Owner, e.Input.Op == "acquire"},
			Output: e.Output, Call: e.Call, Return: e.Return})
	}
	return history, nil
}

// checkFile checks the history in a file, prints what it finds, and returns the program's exit
// code.
func checkFile(path string) int {
	file, err := os.Open(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	defer func() { _ = file.Close() }() // it is only read
	history, err := readHistory(file)
	if err == nil {
		err = legal(history)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %s: %v\n", path, err)
		return 1
	}
	fmt.Printf("%s: %d operations, linearizable\n", path, len(history))
	return 0
}
