// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources/fixture"
)

// export runs the exporter in this process, on a simulated host with an adapter. A server stops immediately.
func export(t *testing.T, args ...string) (stdout, stderr string, err error) {
	h, err := fixture.MLX5()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var c commands
	var out, problems bytes.Buffer
	_, err = newParser(&c, io.Discard, io.Discard, nil).Parse(append([]string{"exporter"}, args...))
	require.NoError(t, err)
	err = c.Exporter.export(ctx, h, output{w: &out, problems: &problems, json: c.JSON})
	return out.String(), problems.String(), err
}

func TestExporterOnce(t *testing.T) {
	out, _, err := export(t, "--once")
	require.NoError(t, err)
	assert.Contains(t, out, `goverbs_process_objects{device="mlx5_0",kind="mr",pid="",process="storage"} 2`)
	out, _, err = export(t, "-1", "--by", "pid", "--json")
	require.NoError(t, err)
	var all []struct {
		Name, Type string
		Metrics    []struct {
			Labels map[string]string
			Value  float64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	for _, f := range all {
		if f.Name == "goverbs_port_received_bytes_total" {
			assert.Equal(t, "COUNTER", f.Type)
			assert.Equal(t, map[string]string{"device": "mlx5_0", "port": "1"}, f.Metrics[0].Labels)
			assert.EqualValues(t, 1e6, f.Metrics[0].Value)
			return
		}
	}
	assert.Fail(t, "metric not found")
}

func TestExporter(t *testing.T) {
	_, printed, err := export(t, "--listen", "127.0.0.1:0")
	assert.NoError(t, err, "interrupting the server is not an error")
	assert.Regexp(t, `^goverbs: serving metrics on http://127\.0\.0\.1:\d+/metrics\n$`, printed)
	out, printed, err := export(t, "--listen", "127.0.0.1:0", "--json")
	assert.NoError(t, err)
	assert.Regexp(t, `^\{\s*"address": "http://127\.0\.0\.1:\d+/metrics"\s*\}\n$`, out)
	assert.Empty(t, printed)
	_, _, err = export(t, "--listen", "nonsense")
	assert.ErrorContains(t, err, "--listen HOST:PORT")
	_, _, err = export(t, "--processes=-1")
	assert.ErrorContains(t, err, "--processes -1: less than 0")
	code, _, problems := goverbs("exporter", "--by", "weight")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, problems, "goverbs exporter --help")
}
