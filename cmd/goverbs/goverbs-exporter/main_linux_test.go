// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources/fixture"
)

// export runs the command in this process, on a host with an adapter.
func export(t *testing.T, args ...string) (code int, stdout, stderr string) {
	h, err := fixture.MLX5()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a server ends at once
	var out, problems bytes.Buffer
	code = run(ctx, append([]string{"exporter"}, args...), h, &out, &problems)
	return code, out.String(), problems.String()
}

func TestOnce(t *testing.T) {
	code, out, problems := export(t, "--once")
	require.Zero(t, code, problems)
	assert.Contains(t, out, `goverbs_process_objects{device="mlx5_0",kind="mr",pid="",process="storage"} 2`)
	_, out, _ = export(t, "-1", "--by", "pid", "--json")
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
	assert.Fail(t, "the metric is not there")
}

func TestServer(t *testing.T) {
	code, _, said := export(t, "--listen", "127.0.0.1:0")
	assert.Zero(t, code, "the end is no failure")
	assert.Regexp(t, `^goverbs: metrics at http://127\.0\.0\.1:\d+/metrics\n$`, said)
	code, out, said := export(t, "--listen", "127.0.0.1:0", "--json")
	assert.Zero(t, code, said)
	assert.Regexp(t, `^\{\s*"address": "http://127\.0\.0\.1:\d+/metrics"\s*\}\n$`, out)
	assert.Empty(t, said)
	code, _, said = export(t, "--listen", "nonsense")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, said, "--listen HOST:PORT")
	code, _, said = export(t, "--processes=-1")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, said, "-1 processes")
	code, _, said = export(t, "--by", "weight")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, said, "goverbs --help")
}
