// SPDX-License-Identifier: BSD-2-Clause

package resources

// Requests of rdma_netlink.h: RDMA_NLDEV_CMD_GET and so on.
const (
	commandGet      = 1
	commandObjects  = 9 // RES_GET
	commandQPs      = 10
	commandCMIDs    = 11
	commandCQs      = 12
	commandMRs      = 13
	commandPDs      = 14
	commandCounters = 17 // STAT_GET
	commandContexts = 22
	commandSRQs     = 23
)

// Attributes of rdma_netlink.h: RDMA_NLDEV_ATTR_DEV_INDEX and so on.
const (
	attrDevIndex     = 1
	attrDevName      = 2
	attrPort         = 3
	attrFirmware     = 5
	attrSummary      = 15
	attrSummaryEntry = 16
	attrSummaryName  = 17
	attrSummaryCount = 18
	attrQP           = 19
	attrQPEntry      = 20
	attrLQPN         = 21
	attrRQPN         = 22
	attrRQPSN        = 23
	attrSQPSN        = 24
	attrType         = 26
	attrState        = 27
	attrPID          = 28
	attrKernelName   = 29
	attrCMID         = 30
	attrCMIDEntry    = 31
	attrPortSpace    = 32
	attrSource       = 33
	attrDestination  = 34
	attrCQ           = 35
	attrCQEntry      = 36
	attrCQE          = 37
	attrUsers        = 38
	attrMR           = 40
	attrMREntry      = 41
	attrMRLength     = 45
	attrPD           = 46
	attrPDEntry      = 47
	attrPDN          = 60
	attrCQN          = 61
	attrMRN          = 62
	attrCMIDN        = 63
	attrContextN     = 64
	attrCounters     = 80
	attrCounter      = 81
	attrCounterName  = 82
	attrCounterValue = 83
	attrContext      = 86
	attrContextEntry = 87
	attrSRQ          = 88
	attrSRQEntry     = 89
	attrSRQN         = 90
)
