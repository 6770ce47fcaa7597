from tools.kernel_code import _first_loop

ASSEMBLY = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0030*/                   LDS R4, [R2] ;
        /*0040*/              @P1  HGMMA.64x64x16.F32.BF16 R8, gdesc[UR4] ;
        /*0050*/                   FADD R5, R5, R4 ;
        /*0060*/               @P0 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""


def test_the_main_loop_is_the_first_that_multiplies_tiles() -> None:
    assert _first_loop(ASSEMBLY) == (4, 1)
    assert _first_loop(ASSEMBLY.replace("HGMMA", "FMUL")) == (None, None)
