// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/csv"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSpeed prints the requests per second of valkey-benchmark over RDMA, and the ratio to TCP with the same server.
// The values are medians of alternating rounds.
func TestSpeed(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("a measurement: set GOVERBS_SPEED=1")
	}
	const rounds = 5
	own, config := address(t)
	s := startServer(t, config, own)
	for _, options := range []string{"-c 1 -n 2000", "-c 20 -n 10000", "-c 20 -n 60000 -P 32",
		"-c 1 -n 500 -d 100000"} {
		var ratios, rates [2][]float64 // of SET and GET
		for range rounds {
			over := benchmark(t, s.address, append(strings.Fields(options), "--rdma"))
			tcp := benchmark(t, s.tcp, strings.Fields(options))
			for i := range over {
				ratios[i] = append(ratios[i], over[i]/tcp[i])
				rates[i] = append(rates[i], over[i])
			}
		}
		for i, name := range []string{"SET", "GET"} {
			t.Logf("%-24s %s %8.0f/s %5.2f × TCP", options, name, median(rates[i]), median(ratios[i]))
		}
	}
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

// benchmark returns the requests per second of SET and GET.
func benchmark(t *testing.T, at string, options []string) (rates [2]float64) {
	host, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	args := append([]string{"-h", host, "-p", port, "-t", "set,get", "--csv"}, options...)
	rows, err := csv.NewReader(strings.NewReader(output(t, program(t, tools, "valkey-benchmark", args...)))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 3)
	for i := range rates {
		rates[i], err = strconv.ParseFloat(rows[i+1][1], 64)
		require.NoError(t, err)
	}
	return rates
}
