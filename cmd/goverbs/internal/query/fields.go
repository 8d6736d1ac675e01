// SPDX-License-Identifier: BSD-2-Clause

package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Field is a value with its name in C or the kernel.
type Field struct {
	Name  string
	Value any    // for JSON
	Text  string // for text
}

// Fields is an ordered list of values, a JSON object.
type Fields []Field

// MarshalJSON writes an object with ordered keys.
func (f Fields) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, one := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(one.Value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", one.Name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (f Fields) write(w io.Writer, indent string) {
	for _, one := range f {
		fmt.Fprintf(w, "%s%-*s %s\n", indent, 34-len(indent), one.Name, one.Text)
	}
}

type integer interface {
	~int | ~int32 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// number returns a decimal field.
func number[T integer](name string, v T) Field { return Field{name, uint64(v), fmt.Sprint(uint64(v))} }

// hex returns a hexadecimal field.
func hex[T integer](name string, v T) Field {
	return Field{name, uint64(v), fmt.Sprintf("%#x", uint64(v))}
}

// text returns a field with an enumerator.
func text(name string, v fmt.Stringer, prefix string) Field { return Field{name, v, short(v, prefix)} }

// flags returns a bit set, a number in JSON since bits may be unknown.
func flags[T interface {
	integer
	fmt.Stringer
}](name string, v T) Field {
	if v == 0 {
		return hex(name, v)
	}
	return Field{name, uint64(v), fmt.Sprintf("%#x %v", uint64(v), v)}
}

// attributes returns the attributes of ibv_query_device.
func attributes(a *ibv.DeviceAttr) Fields {
	version := string(bytes.TrimRight(a.FWVer[:], "\x00"))
	return Fields{
		{"fw_ver", version, version}, {"node_guid", a.NodeGUID, a.NodeGUID.String()},
		{"sys_image_guid", a.SysImageGUID, a.SysImageGUID.String()}, hex("vendor_id", a.VendorID),
		number("vendor_part_id", a.VendorPartID), hex("hw_ver", a.HWVer), number("phys_port_cnt", a.PhysPortCnt),
		hex("max_mr_size", a.MaxMRSize), hex("page_size_cap", a.PageSizeCap), number("max_qp", a.MaxQP),
		number("max_qp_wr", a.MaxQPWR), flags("device_cap_flags", a.DeviceCapFlags), number("max_sge", a.MaxSGE),
		number("max_sge_rd", a.MaxSGERd), number("max_cq", a.MaxCQ), number("max_cqe", a.MaxCQE),
		number("max_mr", a.MaxMR), number("max_pd", a.MaxPD), number("max_qp_rd_atom", a.MaxQPRdAtom),
		number("max_ee_rd_atom", a.MaxEERdAtom), number("max_res_rd_atom", a.MaxResRdAtom),
		number("max_qp_init_rd_atom", a.MaxQPInitRdAtom), number("max_ee_init_rd_atom", a.MaxEEInitRdAtom),
		text("atomic_cap", a.AtomicCap, "IBV_"), number("max_ee", a.MaxEE), number("max_rdd", a.MaxRDD),
		number("max_mw", a.MaxMW), number("max_raw_ipv6_qp", a.MaxRawIPv6QP),
		number("max_raw_ethy_qp", a.MaxRawEthyQP), number("max_mcast_grp", a.MaxMcastGrp),
		number("max_mcast_qp_attach", a.MaxMcastQPAttach),
		number("max_total_mcast_qp_attach", a.MaxTotalMcastQPAttach), number("max_ah", a.MaxAH),
		number("max_fmr", a.MaxFMR), number("max_map_per_fmr", a.MaxMapPerFMR), number("max_srq", a.MaxSRQ),
		number("max_srq_wr", a.MaxSRQWR), number("max_srq_sge", a.MaxSRQSGE), number("max_pkeys", a.MaxPKeys),
		number("local_ca_ack_delay", a.LocalCAAckDelay),
	}
}

// extended returns the additional attributes of ibv_query_device_ex.
func extended(a *ibv.DeviceAttrEx) Fields {
	p, q := a.ODPCaps.PerTransportCaps, a.PacketPacingCaps
	return Fields{
		flags("general_odp_caps", a.ODPCaps.GeneralCaps), flags("rc_odp_caps", p.RCODPCaps),
		flags("uc_odp_caps", p.UCODPCaps), flags("ud_odp_caps", p.UDODPCaps), flags("xrc_odp_caps", a.XRCODPCaps),
		hex("completion_timestamp_mask", a.CompletionTimestampMask),
		{"hca_core_clock", a.HCACoreClock, fmt.Sprintf("%d kHz", a.HCACoreClock)},
		flags("device_cap_flags_ex", a.DeviceCapFlagsEx), number("max_tso", a.TSOCaps.MaxTSO),
		hex("tso_supported_qpts", a.TSOCaps.SupportedQPTs),
		number("max_rwq_indirection_tables", a.RSSCaps.MaxRWQIndirectionTables),
		number("max_rwq_indirection_table_size", a.RSSCaps.MaxRWQIndirectionTableSize),
		flags("rx_hash_function", a.RSSCaps.RXHashFunction),
		flags("rx_hash_fields_mask", a.RSSCaps.RXHashFieldsMask),
		hex("rss_supported_qpts", a.RSSCaps.SupportedQPTs), number("max_wq_type_rq", a.MaxWQTypeRQ),
		{"qp_rate_limit_min", q.QPRateLimitMin, fmt.Sprintf("%d kbit/s", q.QPRateLimitMin)},
		{"qp_rate_limit_max", q.QPRateLimitMax, fmt.Sprintf("%d kbit/s", q.QPRateLimitMax)},
		hex("pacing_supported_qpts", q.SupportedQPTs),
		flags("raw_packet_caps", a.RawPacketCaps),
		number("max_rndv_hdr_size", a.TMCaps.MaxRndvHdrSize), number("max_num_tags", a.TMCaps.MaxNumTags),
		flags("tm_flags", a.TMCaps.Flags), number("tm_max_ops", a.TMCaps.MaxOps),
		number("tm_max_sge", a.TMCaps.MaxSGE), number("max_cq_count", a.CQModCaps.MaxCQCount),
		{"max_cq_period", a.CQModCaps.MaxCQPeriod, fmt.Sprintf("%d µs", a.CQModCaps.MaxCQPeriod)},
		number("max_dm_size", a.MaxDMSize),
		flags("fetch_add", a.PCIAtomicCaps.FetchAdd),
		flags("swap", a.PCIAtomicCaps.Swap),
		flags("compare_swap", a.PCIAtomicCaps.CompareSwap),
		number("phys_port_cnt_ex", a.PhysPortCntEx),
	}
}

// widths and speeds name the codes of a port.
var (
	widths = map[ibv.LinkWidth]string{ibv.IB_WIDTH_1X: "1X", ibv.IB_WIDTH_2X: "2X", ibv.IB_WIDTH_4X: "4X",
		ibv.IB_WIDTH_8X: "8X", ibv.IB_WIDTH_12X: "12X"}
	speeds = map[ibv.LinkSpeed]string{ibv.IB_SPEED_SDR: "2.5 Gbit/s", ibv.IB_SPEED_DDR: "5 Gbit/s",
		ibv.IB_SPEED_QDR: "10 Gbit/s", ibv.IB_SPEED_FDR10: "10 Gbit/s (FDR10)", ibv.IB_SPEED_FDR: "14 Gbit/s",
		ibv.IB_SPEED_EDR: "25 Gbit/s", ibv.IB_SPEED_HDR: "50 Gbit/s", ibv.IB_SPEED_NDR: "100 Gbit/s",
		ibv.IB_SPEED_XDR: "200 Gbit/s"}
)

// coded returns a number with the name of its code.
func coded[T integer](name string, v T, names map[T]string) Field {
	if s, ok := names[v]; ok {
		return Field{name, uint64(v), s}
	}
	return number(name, v)
}

// mtu returns an MTU code, in bytes as text.
func mtu(name string, m ibv.MTU) Field { return number(name, rdma.MTUBytes(m)) }

// portAttributes returns the attributes of ibv_query_port.
func portAttributes(a *ibv.PortAttr) Fields {
	return Fields{
		text("state", a.State, "IBV_"), mtu("max_mtu", a.MaxMTU), mtu("active_mtu", a.ActiveMTU),
		number("sm_lid", a.SMLID), number("port_lid", a.LID), hex("port_lmc", a.LMC),
		text("link_layer", a.LinkLayer, "IBV_LINK_LAYER_"), hex("max_msg_sz", a.MaxMsgSz),
		flags("port_cap_flags", a.PortCapFlags), flags("port_cap_flags2", a.PortCapFlags2),
		number("max_vl_num", a.MaxVLNum), hex("bad_pkey_cntr", a.BadPKeyCntr), hex("qkey_viol_cntr", a.QKeyViolCntr),
		number("sm_sl", a.SMSL), number("pkey_tbl_len", a.PKeyTblLen), number("gid_tbl_len", a.GIDTblLen),
		number("subnet_timeout", a.SubnetTimeout), number("init_type_reply", a.InitTypeReply),
		coded("active_width", a.ActiveWidth, widths), coded("active_speed", ibv.LinkSpeed(a.ActiveSpeed), speeds),
		Field{"phys_state", uint64(a.PhysState), short(a.PhysState, "IB_PORT_PHYS_STATE_")},
		coded("active_speed_ex", a.ActiveSpeedEx, speeds),
	}
}
