package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/sluice-go/sluice/internal/redistest"
)

// programEnv makes this test binary a process of the shop, by the JSON that it holds.
const programEnv = "SALE_PROGRAM"

func TestMain(m *testing.M) {
	spec, isProgram := os.LookupEnv(programEnv)
	if !isProgram {
		redistest.Main(m)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { // ends with the program
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends it, or dies
		stop()
	}()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	var c config
	err := json.Unmarshal([]byte(spec), &c)
	if err == nil {
		err = process(ctx, os.Stdout, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sale:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
