// SPDX-License-Identifier: Apache-2.0

package wire

import "github.com/weir-net/weir/internal/model"

func qosMessage(q *model.QoS) *QoS {
	if q == nil {
		return nil
	}
	return &QoS{Ingress: limitsMessage(q.Ingress), Egress: limitsMessage(q.Egress), Dscp: uint32(q.DSCP)}
}

func limitsMessage(l model.Limits) *Limits {
	return &Limits{
		Bandwidth: l.Bandwidth, Burst: l.Burst, Peakrate: l.Peakrate, Minburst: l.Minburst,
		PacketRate: l.PacketRate, PacketBurst: l.PacketBurst, Connections: l.Connections,
	}
}

func qosOf(q *QoS) *model.QoS {
	if q == nil {
		return nil
	}
	return &model.QoS{Ingress: limitsOf(q.Ingress), Egress: limitsOf(q.Egress), DSCP: uint8(q.Dscp)}
}

func limitsOf(l *Limits) model.Limits {
	return model.Limits{
		Bandwidth: l.GetBandwidth(), Burst: l.GetBurst(), Peakrate: l.GetPeakrate(), Minburst: l.GetMinburst(),
		PacketRate: l.GetPacketRate(), PacketBurst: l.GetPacketBurst(), Connections: l.GetConnections(),
	}
}
