"""A snapshot as it was put before large ones were in frames, and the manifest that named it.

Both are literal: made by the version that wrote them, of a stream of forty messages.
"""

from __future__ import annotations

import base64
from typing import Final

from holdfast.protocol.names import StoreId, StoreKind

STORE: Final = StoreId("acme", StoreKind.STREAM, "project.42")
KEY: Final = "snapshots/acme/project.42.stream/0000000003-0000000000000040-n1"
#: One zstd frame that does not say how long its content is.
BODY: Final = base64.b85decode(
    b"D77#B09Y*~02VdFOR!dT4zzQjyvDuZ{v^2*@1)u<rSKu!g_n<=xaMK%J&IXt-7R3z5pTP1Gi46yl>nO?{Q|>?w#8=pVE"
    b"W2+vY@7#6~&r{o0U?grvR(~v;ae>(GbI6uT)+c>hOGiKyFs}@t8axPGjcqfMyS$t!6YN|0yHzA0Und9&kce(-&Col%|i"
    b"z+y1UbEK1YsRq%21=i|FyZ^zsIrtJsLIbV^y?Co$&UYa;1FvsL}l|^48wi5xJub6~mu~$lG7(U8`dKmvir~dz+X#D>t9"
    b"4;6<{?~=T^Z&2^AHV7U@r(bD|DW>*DvaOsH~yY#%LeiOracNh0YF10P7OAcDEj}OwWI*&#f=>nc&uQOT%yTZT647x$KX"
    b"Xf2evKhDtf*uW1MlTg+-a@dKR2uN&gZnX%$?`wPX-7>i>KAY$cQitt_gtZBWp4`wIfdLwAF(dlIc|`krfhqHEgrqqe(4"
    b"C|lI~d-fLX>bVNnw1at}H2J%pYoFD)11?NS9wDdX$>GBEe7l;@x2xydRoMyba=lVGn6$E~n;!L6yIp8K11v1trq$ZIao"
    b"jhxy*I6;W!GG;ZF6zix7TaqUS4)ifPh^C1G8;lu&o;~VBgqcu}vdDVAo<|wvF?BlgT!&K!Kf;k=Zo{3~Za3nXNl;VBg#"
    b"jAlNh<e^X&!qDh#HUnIBE6Zs@B<yEi@)?o=42!FsUunfEd3&BV*6uinY8JBrkLv}NY{37SbK(dkSB%?G;({!nSw5o@ig"
    b"|?x4=ptH)ex)b>p9K`LA;b?RF)*xV0y{@^GU)ITWJnN%kOgYfBBZ|i^>*BCyYTEoMnvb)smJsrYTN-YfhCU*pOL;F=NC"
    b"#HA5SIh=t)%6+o0QpPS@=!QWvf%Y=~nGUa6BRy23Ol<f=O)P`V+LuYq3~Mn97`wYZE>T96|JjW2;+@|VE*|5-CyyhJLR"
    b"OhKxNFXEOh=kccXh%=eS-03vdpirYtDmCg<s_{mA5l7l;wQB$XY+HZ;`^I8zoQlfMt*q>tfV`;TK%$Y5h=@p1P>^Ie@B"
    b"$H%AxUu(fRI=?8%Ts0gajf11!59p@=8fbQXKsU=mGi<Kx%D!XG6mCgV-&AAFk5zNX#`S!o&{cU4^rpEKXABCT_L0n@I="
    b"raZJ3|%H@jvzx-T|TcI3X?n_im1Vaz1-tr$ACeuewkY;$aEHB0#)<w=|$DOE%0sOeh{a1q<v7sD-knQ9dt>_$p6owWCr"
    b"2~}Ck`v3Jhv9QbxFt$dUW<=Hc#C{6i0ml_1uhlP05~LO8qkQ0WxzK{hy)fY;1Tjz&LyZbcX<LVE-?w}sX!87W0|;yDR6"
    b"oQK;S=D(H~$-pU&OJ&TZ4<C4gaGwl(@}KT&)wjDGohW$<tu$vjX&<LDL)neRRxM0xxoJ@4%#*W_&)+;-?*Q3V<`s8a?~"
    b"=b>O$U?d$lV%CfY8NV5@1FAuV&Z{QA`5R#<5n32IJ74&7y~ZKe%c1Rr67>FQLi!8$01nZ<s}E03^bY"
)
#: `manifests/<shard>`, with the entry of that store alone.
SHARD: Final = base64.b85decode(
    b"D77#BAd>9^0Q3fw0R@qkq+w%iWdW*ia&Ky7V{|SwGLf9wKXYzjaC2yHbaO8+E^~BpWnpbEFf%PMG%zi0F#yd3j>I5?X{"
    b"$pdyN+1${<bm2*l3djmnF1v9qv>#*MD^`gX_)BBme^_C@9SV56uJU%?Ho`zyJgQ;0zo&p!PCY>In"
)
SHA256: Final = "8369ab4324bb8e58f2feb631c5d86893039725b4721dee5434d77f752e83ebcd"
METADATA: Final = {
    "sha256": SHA256, "image-bytes": "9216", "last-seq": "40", "count": "40", "bytes": "271",
    "time": "1000", "taken": "2000",
}  # fmt: skip
