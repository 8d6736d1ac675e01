// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNumbers has a C compiler and the kernel's header say what each number of numbers_linux.go is.
func TestNumbers(t *testing.T) {
	numbers := map[string]int{"CMD_GET": commandGet, "CMD_RES_GET": commandObjects, "CMD_RES_QP_GET": commandQPs,
		"CMD_RES_CM_ID_GET": commandCMIDs, "CMD_RES_CQ_GET": commandCQs, "CMD_RES_MR_GET": commandMRs,
		"CMD_RES_PD_GET": commandPDs, "CMD_STAT_GET": commandCounters, "CMD_RES_CTX_GET": commandContexts,
		"CMD_RES_SRQ_GET": commandSRQs, "ATTR_DEV_INDEX": attrDevIndex, "ATTR_DEV_NAME": attrDevName,
		"ATTR_PORT_INDEX": attrPort, "ATTR_FW_VERSION": attrFirmware, "ATTR_RES_SUMMARY": attrSummary,
		"ATTR_RES_SUMMARY_ENTRY": attrSummaryEntry, "ATTR_RES_SUMMARY_ENTRY_NAME": attrSummaryName,
		"ATTR_RES_SUMMARY_ENTRY_CURR": attrSummaryCount, "ATTR_RES_QP": attrQP, "ATTR_RES_QP_ENTRY": attrQPEntry,
		"ATTR_RES_LQPN": attrLQPN, "ATTR_RES_RQPN": attrRQPN, "ATTR_RES_RQ_PSN": attrRQPSN,
		"ATTR_RES_SQ_PSN": attrSQPSN, "ATTR_RES_TYPE": attrType, "ATTR_RES_STATE": attrState, "ATTR_RES_PID": attrPID,
		"ATTR_RES_KERN_NAME": attrKernelName, "ATTR_RES_CM_ID": attrCMID, "ATTR_RES_CM_ID_ENTRY": attrCMIDEntry,
		"ATTR_RES_PS": attrPortSpace, "ATTR_RES_SRC_ADDR": attrSource, "ATTR_RES_DST_ADDR": attrDestination,
		"ATTR_RES_CQ": attrCQ, "ATTR_RES_CQ_ENTRY": attrCQEntry, "ATTR_RES_CQE": attrCQE, "ATTR_RES_USECNT": attrUsers,
		"ATTR_RES_MR": attrMR, "ATTR_RES_MR_ENTRY": attrMREntry, "ATTR_RES_MRLEN": attrMRLength, "ATTR_RES_PD": attrPD,
		"ATTR_RES_PD_ENTRY": attrPDEntry, "ATTR_RES_PDN": attrPDN, "ATTR_RES_CQN": attrCQN, "ATTR_RES_MRN": attrMRN,
		"ATTR_RES_CM_IDN": attrCMIDN, "ATTR_RES_CTXN": attrContextN, "ATTR_STAT_HWCOUNTERS": attrCounters,
		"ATTR_STAT_HWCOUNTER_ENTRY": attrCounter, "ATTR_STAT_HWCOUNTER_ENTRY_NAME": attrCounterName,
		"ATTR_STAT_HWCOUNTER_ENTRY_VALUE": attrCounterValue, "ATTR_RES_CTX": attrContext,
		"ATTR_RES_CTX_ENTRY": attrContextEntry, "ATTR_RES_SRQ": attrSRQ, "ATTR_RES_SRQ_ENTRY": attrSRQEntry,
		"ATTR_RES_SRQN": attrSRQN}
	text, err := os.ReadFile("numbers_linux.go")
	require.NoError(t, err)
	assert.Len(t, numbers, strings.Count(string(text), " = "), "each is asked")
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler: make deps brings it")
	}
	if _, err := os.Stat("/usr/include/rdma/rdma_netlink.h"); err != nil {
		t.Skip("the kernel's headers are not here: make deps brings them")
	}
	dir := t.TempDir()
	source := "#include <stdio.h>\n#include <rdma/rdma_netlink.h>\nint main(void) {\n"
	want := ""
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		source += fmt.Sprintf("\tprintf(\"%s %%d\\n\", (int)RDMA_NLDEV_%s);\n", name, name)
		want += fmt.Sprintf("%s %d\n", name, numbers[name])
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "numbers.c"), []byte(source+"}\n"), 0o600))
	program := filepath.Join(dir, "numbers")
	out, err := exec.Command(cc, "-o", program, program+".c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(program).Output()
	require.NoError(t, err)
	assert.Equal(t, want, string(out))
}
