// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"goverbs": main}) }

// TestScripts runs the scripts in testdata.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata"})
}

// TestEveryStatusIsExplained looks up each completion status by number, by name, and by name without its prefix.
func TestEveryStatusIsExplained(t *testing.T) {
	for s := ibv.WC_SUCCESS; s <= ibv.WC_TM_RNDV_INCOMPLETE; s++ {
		number, err := json.Marshal(uint32(s))
		require.NoError(t, err)
		for _, word := range []string{string(number), s.String(), s.String()[len("IBV_WC_"):]} {
			var out, problems bytes.Buffer
			require.Zero(t, run([]string{"--json", "explain", word}, &out, &problems), "%s: %s", word, &problems)
			var all []map[string]string
			require.NoError(t, json.Unmarshal(out.Bytes(), &all), word)
			require.NotEmpty(t, all, word)
			assert.Equal(t, s.String(), all[0]["name"], word)
			assert.Equal(t, ibv.WCStatusMeaning(s).Meaning, all[0]["meaning"], word)
		}
	}
}
