// SPDX-License-Identifier: BSD-2-Clause

package message

import "github.com/goverbs/goverbs/generated/ibv"

// field is a number, or part of one, in the bytes of a message.
type field struct {
	name        string
	at          int // offset of its first byte, after the header
	size        int // bits of the big-endian word at that offset: 8, 16, 32 or 64
	skip, width int // bits of the word before the field, and bits of the field
	get         func(*MAD) uint64
	set         func(*MAD, uint64)
}

func (f *field) put(b []byte, v uint64) { f.store(b, f.load(b)|v<<f.shift()) }

func (f *field) read(b []byte) uint64 {
	v := f.load(b) >> f.shift()
	return v & (1<<f.width - 1)
}

func (f *field) shift() int { return f.size - f.skip - f.width }

func (f *field) load(b []byte) uint64 {
	switch b = b[f.at:]; f.size {
	case 8:
		return uint64(b[0])
	case 16:
		return uint64(order.Uint16(b))
	case 32:
		return uint64(order.Uint32(b))
	}
	return order.Uint64(b)
}

func (f *field) store(b []byte, v uint64) {
	switch b = b[f.at:]; f.size {
	case 8:
		b[0] = uint8(v)
	case 16:
		order.PutUint16(b, uint16(v))
	case 32:
		order.PutUint32(b, uint32(v))
	default:
		order.PutUint64(b, v)
	}
}

type unsigned interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64
}

// number returns a field that holds a complete number.
func number[T unsigned](name string, at, size, skip, width int, of func(*MAD) *T) field {
	return field{
		name, at, size, skip, width,
		func(m *MAD) uint64 { return uint64(*of(m)) },
		func(m *MAD, v uint64) { *of(m) = T(v) },
	}
}

// low and high return fields that hold a part of a number: the bits from shift on. high holds all remaining bits, so
// that a number that is too large is detected there.
func low[T unsigned](name string, at, skip, width, shift int, of func(*MAD) *T) field {
	f := high(name, at, skip, width, shift, of)
	all := f.get
	f.get = func(m *MAD) uint64 { return all(m) & (1<<width - 1) }
	return f
}

func high[T unsigned](name string, at, skip, width, shift int, of func(*MAD) *T) field {
	return field{
		name, at, 8, skip, width,
		func(m *MAD) uint64 { return uint64(*of(m)) >> shift },
		func(m *MAD, v uint64) { *of(m) |= T(v << shift) },
	}
}

// flag returns a field of one bit.
func flag(name string, at, skip int, of func(*MAD) *bool) field {
	return field{name, at, 8, skip, 1,
		func(m *MAD) uint64 {
			if *of(m) {
				return 1
			}
			return 0
		},
		func(m *MAD, v uint64) { *of(m) = v != 0 },
	}
}

// Fields of several attributes, by offset.

func localID(at int) field {
	return number("local communication ID", at, 32, 0, 32, func(m *MAD) *uint32 { return &m.LocalID })
}

func remoteID(at int) field {
	return number("remote communication ID", at, 32, 0, 32, func(m *MAD) *uint32 { return &m.RemoteID })
}

func serviceID(at int) field {
	return number("service ID", at, 64, 0, 64, func(m *MAD) *uint64 { return &m.ServiceID })
}

func caGUID(at int) field {
	return number("CA GUID", at, 64, 0, 64, func(m *MAD) *uint64 { return &m.CAGUID })
}

func pkey(at int) field {
	return number("P_Key", at, 16, 0, 16, func(m *MAD) *uint16 { return &m.PKey })
}

func qpn(at int) field {
	return number("QPN", at, 32, 0, 24, func(m *MAD) *uint32 { return &m.QPN })
}

func psn(at int) field {
	return number("PSN", at, 32, 0, 24, func(m *MAD) *uint32 { return &m.PSN })
}

func responderResources(at int) field {
	return number("responder resources", at, 8, 0, 8, func(m *MAD) *uint8 { return &m.ResponderResources })
}

func initiatorDepth(at int) field {
	return number("initiator depth", at, 8, 0, 8, func(m *MAD) *uint8 { return &m.InitiatorDepth })
}

func flowControl(at, skip int) field {
	return flag("end-to-end flow control", at, skip, func(m *MAD) *bool { return &m.FlowControl })
}

func sharedReceiveQueue(at, skip int) field {
	return flag("SRQ", at, skip, func(m *MAD) *bool { return &m.SRQ })
}

func rnrRetryCount(at, skip int) field {
	return number("RNR retry count", at, 8, skip, 3, func(m *MAD) *uint8 { return &m.RNRRetryCount })
}

func about(at int) field {
	return number("message", at, 8, 0, 2, func(m *MAD) *Of { return &m.Of })
}

func vendor(m *MAD) *uint32 { return &m.ECE.Vendor }

func service(m *MAD) *Transport { return &m.Transport }

// fields lists the numbers of each attribute, at the specification's offsets. The ECE vendor is at Linux's.
var fields = map[Attribute][]field{
	REQ: {
		localID(0),
		number("ECE vendor", 4, 32, 8, 24, vendor),
		serviceID(8),
		caGUID(16),
		qpn(32),
		responderResources(35),
		initiatorDepth(39),
		number("remote CM response timeout", 43, 8, 0, 5, func(m *MAD) *uint8 { return &m.RemoteTimeout }),
		low("transport service type", 43, 5, 2, 0, service),
		flowControl(43, 7),
		psn(44),
		number("local CM response timeout", 47, 8, 0, 5, func(m *MAD) *uint8 { return &m.LocalTimeout }),
		number("retry count", 47, 8, 5, 3, func(m *MAD) *uint8 { return &m.RetryCount }),
		pkey(48),
		number("path MTU", 50, 8, 0, 4, func(m *MAD) *ibv.MTU { return &m.Path.MTU }),
		rnrRetryCount(50, 5),
		number("max CM retries", 51, 8, 0, 4, func(m *MAD) *uint8 { return &m.MaxRetries }),
		sharedReceiveQueue(51, 4),
		high("extended transport type", 51, 5, 3, 2, service),
		number("local LID", 52, 16, 0, 16, func(m *MAD) *uint16 { return &m.Path.LocalLID }),
		number("remote LID", 54, 16, 0, 16, func(m *MAD) *uint16 { return &m.Path.RemoteLID }),
		number("flow label", 88, 32, 0, 20, func(m *MAD) *uint32 { return &m.Path.FlowLabel }),
		number("packet rate", 91, 8, 2, 6, func(m *MAD) *uint8 { return &m.Path.Rate }),
		number("traffic class", 92, 8, 0, 8, func(m *MAD) *uint8 { return &m.Path.TrafficClass }),
		number("hop limit", 93, 8, 0, 8, func(m *MAD) *uint8 { return &m.Path.HopLimit }),
		number("local ACK timeout", 95, 8, 0, 5, func(m *MAD) *uint8 { return &m.Path.AckTimeout }),
	},
	MRA: {
		localID(0),
		remoteID(4),
		about(8),
		number("service timeout", 9, 8, 0, 5, func(m *MAD) *uint8 { return &m.ServiceTimeout }),
	},
	REJ: {
		localID(0),
		remoteID(4),
		about(8),
		number("reason", 10, 16, 0, 16, func(m *MAD) *uint16 { return &m.Reason }),
	},
	REP: {
		localID(0),
		remoteID(4),
		qpn(12),
		high("ECE vendor", 15, 0, 8, 16, vendor),
		low("ECE vendor", 19, 0, 8, 8, vendor),
		psn(20),
		low("ECE vendor", 23, 0, 8, 0, vendor),
		responderResources(24),
		initiatorDepth(25),
		number("target ACK delay", 26, 8, 0, 5, func(m *MAD) *uint8 { return &m.AckDelay }),
		flowControl(26, 7),
		rnrRetryCount(27, 0),
		sharedReceiveQueue(27, 3),
		caGUID(28),
	},
	RTU: {
		localID(0),
		remoteID(4),
	},
	DREQ: {
		localID(0),
		remoteID(4),
		qpn(8),
	},
	DREP: {
		localID(0),
		remoteID(4),
	},
	SIDRReq: {
		localID(0),
		pkey(4),
		serviceID(8),
	},
	SIDRRep: {
		remoteID(0),
		number("status", 4, 8, 0, 8, func(m *MAD) *uint8 { return &m.Status }),
		qpn(8),
		serviceID(12),
		number("Q_Key", 20, 32, 0, 32, func(m *MAD) *uint32 { return &m.QKey }),
	},
}
