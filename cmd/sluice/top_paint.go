package main

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// lineLook is how a line is shown. What it says stands in words, too.
type lineLook int

const (
	lookPlain lineLook = iota
	lookHead
	lookFaint
	lookWarning
	lookBad
	// lookChosen is beside another one.
	lookChosen lineLook = 1 << 8
)

// chosenMark stands behind the chosen queue where there are no colours.
const chosenMark = " <"

// line is one of a terminal.
type line struct {
	text string
	look lineLook
}

// lookOf returns how a queue is shown: by its worst sign.
func lookOf(r queueRow) lineLook {
	switch sign := inspect.Worst(inspect.Signs(r.stats, r.stuck)); {
	case r.err != nil, sign >= inspect.SignNoWorker:
		return lookBad
	case sign > 0:
		return lookWarning
	}
	return lookPlain
}

// paint joins lines, with colours or without. The chosen one is reversed or, without colours, has a
// mark at its end: what stands in it begins where the others do.
func paint(lines []line, colours bool) string {
	painted := make([]string, len(lines))
	for i, l := range lines {
		isChosen := l.look&lookChosen != 0
		if painted[i] = l.text; !colours {
			if isChosen {
				painted[i] += chosenMark
			}
			continue
		}
		style := ansi.NewStyle()
		switch l.look &^ lookChosen {
		case lookHead:
			style = style.Bold()
		case lookFaint:
			style = style.Faint()
		case lookWarning:
			style = style.ForegroundColor(ansi.Yellow)
		case lookBad:
			style = style.ForegroundColor(ansi.Red)
		}
		if isChosen {
			style = style.Reverse(true)
		}
		if len(style) > 0 && l.text != "" {
			painted[i] = style.Styled(l.text)
		}
	}
	return strings.Join(painted, "\n")
}
