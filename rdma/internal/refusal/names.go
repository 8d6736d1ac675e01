// SPDX-License-Identifier: BSD-2-Clause

package refusal

import (
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// ShortName returns the name of a queue pair type as in the man pages, such as RC.
func ShortName(t ibv.QPType) string { return strings.TrimPrefix(t.String(), "IBV_QPT_") }

// ShortState returns the short name of a state, such as RTS.
func ShortState(s ibv.QPState) string { return strings.TrimPrefix(s.String(), "IBV_QPS_") }

// Refused reports whether a validity table answers no.
func Refused(v ibv.Validity) bool { return v.Answer == ibv.AnswerNo || v.Answer == ibv.AnswerNotInVerb }
