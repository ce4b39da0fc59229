package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/sluice-go/sluice/cmd/sluice/report"
	"github.com/spf13/cobra"
)

// versionJSON is what the program is built from, in JSON.
type versionJSON struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // since that revision
	Go       string `json:"go"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the program's version",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			v := versionJSON{Version: "unknown", Go: runtime.Version()}
			if info, ok := debug.ReadBuildInfo(); ok {
				v.Version = info.Main.Version
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						v.Revision = s.Value
					case "vcs.modified":
						v.Modified = s.Value == "true"
					}
				}
			}
			if a.json {
				return report.Print(a.out, v)
			}
			_, err := fmt.Fprintln(a.out, v.Version)
			return err
		},
	}
}
